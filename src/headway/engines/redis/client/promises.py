"""A promised slot that is redeemed by another process than the one that reserved it.

The ledger has noted the slot, and owes nothing more: what the new holder needs to know is when the slot is, by its own
clock. The promise says when it is by the server's clock, so one reply of the server tells, as it does for a grant. The
reply also says by how much pauses have moved the slot since, and whether the ledger is still the one that promised it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headway.engines.redis.client.requests import Acquire, PollQueue
from headway.engines.redis.script.protocol import RESERVE
from headway.errors import InvalidArgument

if TYPE_CHECKING:
    from headway.engines import base
    from headway.engines.redis.client.ledger_client import LedgerClient, Reply

EPOCH = 24
"""The bytes of an epoch."""


class Redeem(PollQueue):
    """Reads the server's clock, the ledger's epoch and its pauses; `decision` is the slot, as if granted here."""

    __slots__ = ("_due", "_marks", "_promised_in", "_shift", "decision")

    def __init__(self, ledger: LedgerClient, command: base.Redeem) -> None:
        PollQueue.__init__(self, ledger)
        self._promised_in, self._due, self._shift, self._marks = _read(command.promise, len(command.costs))
        self.decision = Acquire(ledger, command.costs, RESERVE)

    def apply_reply(self, reply: Reply, said: tuple[float, ...], position: int) -> int:
        acquire = self.decision
        acquire.due = self._due + reply.shift - self._shift
        acquire.grant(
            acquire.due - reply.now, self._marks, reply.shift, self._promised_in, reply.since, reply.received
        )
        # Until there is a permit, nothing goes back: a caller that was interrupted may redeem the promise again.
        acquire.owned = True
        acquire.void = reply.reply_epoch != self._promised_in
        return PollQueue.apply_reply(self, reply, said, position)


def _read(promise: str, width: int) -> tuple[bytes, float, float, tuple[float, ...]]:
    """The epoch of the ledger, the slot by the server's clock, how far pauses had moved slots, and the marks."""
    try:
        epoch, *facts = promise.split(" ")
        due, shift, *marks = map(float.fromhex, facts)
        known = bytes.fromhex(epoch)
    except ValueError:
        known, due, shift, marks = b"", 0.0, 0.0, []
    if len(known) != EPOCH or len(marks) != 2 * width or not all(map(math.isfinite, (due, shift, *marks))):
        raise InvalidArgument("promise", promise, "what hand_over() has returned")
    return known, due, shift, tuple(marks)
