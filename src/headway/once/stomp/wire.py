"""What a gate's values look like on the wire: destinations, bodies, message ids, and back.

A `message-id` is also what to resume with. It says which line was seen last, and of which gate, so that a server can
tell whether its log still goes on from there:

    {clock}-{began}-{time}                     after a key frame
    {clock}-{began}-{status}-{time}-{id}       after a change; status 1 SUBMITTED, 2 INVALIDATED, 3 PUBLISHED

Times in it are whole microseconds since 1970. Names of gates and ids of events may be any text, and headers may not
(STOMP 1.0 has no escapes, and no version can say NUL): in headers they are percent-encoded as UTF-8, as in a URL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from headway.core.once import EventStatus
from headway.once.input import checked_clock
from headway.once.results import Change, Pending, Snapshot, Submission, ns_of, seconds_of
from headway.printable import printable
from headway.stomp import rest_of_message
from headway.stomp.codec import shown

if TYPE_CHECKING:
    from headway.once.gate import Once

TOPIC: Final = "/topic/gates/"
SUBMIT: Final = "/app/gates/"
KEY_FRAME: Final = "KEY_FRAME"

ENDS: Final = {int(status): status for status in EventStatus if status is not EventStatus.REJECTED}
MOST_NAMES: Final = 10
LONGEST_REASON: Final = 1000


class Message:
    """A MESSAGE, but for what differs between subscribers. What is the same is encoded once for each version."""

    __slots__ = ("_rests", "body", "headers", "id")

    def __init__(self, id: str, headers: dict[str, str], body: bytes) -> None:
        self.id = id
        self.headers = {"message-id": id} | headers
        self.body = body
        self._rests: dict[str, bytes] = {}

    def rest(self, version: str) -> bytes:
        found = self._rests.get(version)
        if found is None:
            found = self._rests[version] = rest_of_message(version, self.headers, self.body)
        return found


class BadRequest(Exception):
    """What a peer asks for cannot be done; the text is for the peer."""


# -- what is sent --------------------------------------------------------------------------------------------


def message_of(item: Change | Snapshot, gate: Once) -> Message:
    """A delta or a key frame."""
    kind = KEY_FRAME if isinstance(item, Snapshot) else item.status.name
    body = body_of(item, gate)
    headers = {"content-type": "application/json", "kind": kind, "clock": str(item.clock)}
    return Message(since_text(item), headers, json_text(body).encode())


def body_of(item: Change | Snapshot, gate: Once) -> dict[str, Any]:
    """A delta or a key frame as JSON says it, here and over plain HTTP."""
    if isinstance(item, Change):
        return item._asdict() | {"status": item.status.name}
    return {
        "clock": item.clock,
        "time": item.time,
        "began": item.began,
        "duration": gate.duration,
        "mode": gate.mode,
        "pending": [pending._asdict() for pending in item.pending],
    }


def item_of(body: Mapping[str, Any]) -> Change | Snapshot:
    """The delta or key frame that a body says; raises `ValueError` for what is none.

    >>> item_of({"clock": 7, "time": 1.5, "began": 1.0, "duration": 3.0, "mode": "only", "pending": []})
    Snapshot(clock=7, time=1.5, pending=(), began=1.0)
    """
    try:
        if "pending" in body:
            pending = tuple(Pending(**one) for one in body["pending"])
            return Snapshot(body["clock"], body["time"], pending, body["began"])
        return Change(**{**body, "status": EventStatus[body["status"]]})
    except (KeyError, TypeError) as error:
        raise ValueError(f"neither a change nor a key frame: {error}") from error


def json_text(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def receipt_headers(found: Submission) -> dict[str, str]:
    """The answer to a submit, as headers of its receipt."""
    headers = {"accepted": "true" if found.accepted else "false", "id": quote(found.id, safe="")}
    headers["clock"] = str(found.clock)
    if found.due is not None:
        headers["due"] = repr(found.due)
    if found.conflict is not None:
        headers["conflict"] = quote(found.conflict, safe="")
    return headers


def short(text: str) -> str:
    """A reason as it is shown to a peer: what it quotes may be long."""
    return printable(text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "...")


# -- where to resume -----------------------------------------------------------------------------------------


def since_text(item: Change | Snapshot) -> str:
    """The message id.

    >>> since_text(Snapshot(7, 1.5, (), 1.0))
    '7-1000000-1500000'
    >>> since_text(Change(8, EventStatus.PUBLISHED, "a b", "pizza", None, 1.5, 1.0))
    '8-1000000-3-1500000-a%20b'
    """
    began = ns_of(item.began) // 1000
    if isinstance(item, Snapshot):
        return f"{item.clock}-{began}-{ns_of(item.time) // 1000}"
    return f"{item.clock}-{began}-{int(item.status)}-{ns_of(item.time) // 1000}-{quote(item.id, safe='')}"


def parse_since(text: str) -> int | Change | Snapshot:
    """A `since` header, for `Once.subscribe`: a clock value, or the id of the last message that was seen.

    >>> parse_since("7"), parse_since("7-1000000-1500000")
    (7, Snapshot(clock=7, time=1.5, pending=(), began=1.0))
    >>> parse_since("8-1000000-3-1500000-a%20b").id
    'a b'
    """
    clock, *more = text.split("-", 4)
    numbers = [clock, *more[:3]]
    try:
        if len(more) not in (0, 2, 4) or not all(one.isascii() and one.isdigit() for one in numbers):
            raise ValueError
        if any(len(one) > 17 for one in numbers):
            raise ValueError
        value = checked_clock(int(clock))
        if not more:
            return value
        began = seconds_of(int(more[0]) * 1000)  # as a gate does, so that the same float comes out
        if len(more) == 2:
            return Snapshot(value, seconds_of(int(more[1]) * 1000), (), began)
        status = ENDS[int(more[1])]
        return Change(
            value, status, unquote(more[3], errors="strict"), "", None, seconds_of(int(more[2]) * 1000), began
        )
    except (ValueError, KeyError):  # an InvalidArgument, and what is no UTF-8, are ValueErrors too
        raise BadRequest(
            f"since:{shown(text)} is no place to resume from: give the message-id of the last message that you saw, "
            "or its clock value"
        ) from None


# -- what is asked for ---------------------------------------------------------------------------------------


def gate_name(destination: str, prefix: str, names: Iterable[object]) -> str:
    """The gate of a destination."""
    if destination.startswith(prefix) and destination != prefix:
        try:
            return unquote(destination.removeprefix(prefix), errors="strict")
        except UnicodeDecodeError:
            pass
    verb = "subscribe to" if prefix == TOPIC else "send to"
    raise BadRequest(f"there is no {shown(destination)} here: {verb} {prefix}{{gate}}; {listed(names)}")


def no_gate(name: str, names: Iterable[object]) -> BadRequest:
    return BadRequest(f"there is no gate {shown(name)}; {listed(names)}")


def listed(names: Iterable[object]) -> str:
    """Which gates there are, or the first of them.

    >>> listed(["b", "a"]), listed([]), listed(map(str, range(12)))
    ('gates: a, b', 'there are no gates', 'gates: 0, 1, 10, 11, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    known = sorted(map(str, names))
    if not known:
        return "there are no gates"
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    first = (printable(name if len(name) <= 60 else name[:60] + "...") for name in known[:MOST_NAMES])
    return f"gates: {', '.join(first)}{more}"


def parse_submit(body: bytes) -> tuple[str, str | None, str | None]:
    """The event, id and value of a SEND."""
    usage = 'give a JSON object {"event": "...", "id": "...", "value": "..."}; id and value may be left out'
    try:
        found = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise BadRequest(f"the body is no JSON: {shown(body)}; {usage}") from None
    if not isinstance(found, dict) or "event" not in found:
        raise BadRequest(f"the body has no event; {usage}")
    unknown = sorted(found.keys() - {"event", "id", "value"})
    if unknown:
        raise BadRequest(f"the body has {shown(unknown[0])}, which is not known; {usage}")
    for name, value in found.items():
        if not (isinstance(value, str) or (value is None and name != "event")):
            raise BadRequest(f"{name} is no text; {usage}")
    return found["event"], found.get("id"), found.get("value")
