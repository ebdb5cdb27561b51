"""What a session tells its program: a frame of the peer that is in order, or the end.

Each but `Closed` is answered by `Session.done` or `Session.refuse`. `headers` are all that the frame had, so a program
has its own there; `receipt` is what the peer wants to see in a RECEIPT, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Connect(NamedTuple):
    """The peer wants to connect; `done` sends CONNECTED, `refuse` an ERROR."""

    version: str
    host: str | None
    headers: Mapping[str, str]
    receipt: str | None = None


class Subscribe(NamedTuple):
    """The peer subscribed. From now on `message` with this id reaches it."""

    id: str
    destination: str
    headers: Mapping[str, str]
    receipt: str | None = None


class Unsubscribe(NamedTuple):
    """The peer ended a subscription; `message` with this id sends nothing any more."""

    id: str
    destination: str
    headers: Mapping[str, str]
    receipt: str | None = None


class Send(NamedTuple):
    """The peer sent a message to a destination."""

    destination: str
    body: bytes
    headers: Mapping[str, str]
    receipt: str | None = None


class Disconnect(NamedTuple):
    """The peer leaves; `done` sends its receipt and closes."""

    headers: Mapping[str, str]
    receipt: str | None = None


class Closed(NamedTuple):
    """It is over, and why. An ERROR frame that says so is in `take`."""

    reason: str


Event = Connect | Subscribe | Unsubscribe | Send | Disconnect | Closed
