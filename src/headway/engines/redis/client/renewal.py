"""Renewals: permits that the ledger takes back when their holder falls silent.

The background worker renews them for as long as they are held. A renewal gives the permit another mark in the ledger,
and permits that were granted in the same moment share one: a release that overtook the renewal's answer would be taken
for the release of another permit. So a release waits until no renewal of its permit is under way.
"""

from __future__ import annotations

import threading

from headway.engines.redis.client.requests import Acquire, Enter, post_end, taken_here
from headway.engines.redis.script.protocol import TICK
from headway.forks import on_fork
from headway.outcome import Outcome


class Renewal:
    """One rule's part of a held permit."""

    __slots__ = (
        "acquire",
        "cost",
        "dropped",
        "ended",
        "last_words",
        "lost",
        "mark",
        "parts",
        "renewing",
        "rule",
        "until",
    )

    def __init__(self, acquire: Acquire, rule: int) -> None:
        self.acquire = acquire
        self.rule = rule
        self.cost = acquire.costs[rule]
        self.mark = acquire.marks[2 * rule]
        self.until = acquire.expires
        self.ended = self.dropped = self.lost = self.renewing = False
        # The renewals of the same permit; and how it was released, if that could not be sent yet.
        self.parts: list[Renewal] = []
        self.last_words: tuple[int, tuple[int, ...] | None] | None = None

    def begin_renewal(self) -> bool:
        """Whether a renewal is due; until its answer is there, the release of the permit has to wait."""
        with _order:
            if self.ended or self.renewing:
                return False
            self.renewing = True
            return True

    def renewed(self, mark: float, epoch: bytes, sent: int) -> None:
        """The ledger's answer: the mark under which it goes on, or -1 if it has given the permit away."""
        acquire = self.acquire
        if mark < 0:
            self.lost = True
            acquire.ledger.leases.pop((acquire.ticket, self.rule), None)
        else:
            self.mark = mark
            with _order:
                marks = list(acquire.marks)
                marks[2 * self.rule] = mark
                acquire.marks = tuple(marks)
            acquire.epoch = epoch
            self.until = sent + acquire.ledger.allowance_ns
        self.not_renewed()

    def end_dropped(self) -> None:
        """The permit was dropped without an end."""
        if not self.ended:
            send_release(self.acquire, Outcome.ABANDON)

    def not_renewed(self) -> None:
        """No renewal is under way any more: send the release that waited for it."""
        with _order:
            self.renewing = False
            said = self.last_words
            if said is None or any(part.renewing for part in self.parts):
                return
            for part in self.parts:
                part.last_words = None
        post_end(self.acquire, *said)


# Re-entrant: the garbage collector may run while this thread has it, and end another permit.
_order = threading.RLock()


def after_fork() -> None:
    """In a forked child: the thread that may have had the lock is the parent's."""
    global _order
    _order = threading.RLock()


on_fork(after_fork)


def begin_renewals(acquire: Acquire, rules: list[int]) -> None:
    """Renew these rules of a permit for as long as it is held."""
    ledger = acquire.ledger
    acquire.renewals = renewals = [Renewal(acquire, rule) for rule in rules if acquire.costs[rule]]
    for renewal in renewals:
        renewal.parts = renewals
        ledger.leases[acquire.ticket, renewal.rule] = renewal
    ledger.registry.engine.track(ledger)


def send_release(acquire: Acquire, how: int, actual: tuple[int, ...] | None = None) -> None:
    """Tell the ledger how a permit ended, after the answer to a renewal that is under way."""
    if acquire.renewals:
        with _order:
            wait = any(renewal.renewing for renewal in acquire.renewals)
            for renewal in acquire.renewals:
                renewal.ended = True
                renewal.last_words = (how, actual) if wait else None
        for renewal in acquire.renewals:
            acquire.ledger.leases.pop((acquire.ticket, renewal.rule), None)
        if wait:
            return
    post_end(acquire, how, actual)


def enter(acquire: Acquire) -> bool:
    """A bare permit brackets a call from now on: its windows count it until its release. False: nothing changes."""
    ledger = acquire.ledger
    if not ledger.bracketed or acquire.void or acquire.entered is not None or not taken_here(acquire):
        return False
    now = ledger.registry.clock.now()
    with _order:
        marks, since = list(acquire.marks), [0] * len(acquire.costs)
        for i, rule in enumerate(ledger.rules):
            if acquire.costs[i] and marks[2 * i] < 0 and rule.bracketed:
                # The mark under which its release finds it: a time that is not before this one.
                grid = rule.out_grid
                since[i] = -(-server_time(acquire, now, marks[2 * i]) // grid) * grid
        if not any(since):
            return False
        entered = acquire.entered = Enter(acquire, tuple(since))
        acquire.held = True
        for i, at in enumerate(since):
            if at:
                marks[2 * i] = float(at)
        acquire.marks = tuple(marks)
    acquire.slot = now
    ledger.post(entered)
    return True


def server_time(acquire: Acquire, now: int, mark: float) -> int:
    """The server's time, at most. Where its clock is not known: from when the permit would be usable again, had it not
    been entered."""
    registry = acquire.ledger.registry
    sample = registry.clock_samples.get(acquire.ledger.ident)
    if sample is not None:
        return int(sample.bounds(now, now, registry.drift)[1])
    return int(-mark + (now - acquire.replied_at) * (1 + registry.drift) / TICK)
