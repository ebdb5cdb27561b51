"""A service's answers as the front end reads them: `base.Decision`, `base.Report` and `base.Synced`.

Waiting is done by the server: it stands in the ledger's queue, sleeps until a promised slot and sits out pauses, as any
process on its engine would, and tells this process when the permit is there. So a waiter here sleeps until it is told.

A permit may be spent until a time on the server's clock. On ours that is reckoned from the last look at that clock, and
always too early rather than too late (`Sample`). A permit that seems to have expired only because that look is long ago
is reckoned anew from a fresh one (`Action.CHECK`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from headway.clock import SYSTEM
from headway.engines.base import Action, Step, Verdict
from headway.engines.http.requests import PermitRequest
from headway.engines.wire import answer_in, rows_in
from headway.forks import on_fork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.core import lease
    from headway.core.ledger import Rule
    from headway.core.limits import Limit
    from headway.engines.base import Row
    from headway.engines.http.ledgers import HttpLedgers
    from headway.engines.http.requests import Sample

DENIED, GRANTED, QUEUED = int(Verdict.DENIED), int(Verdict.GRANTED), int(Verdict.QUEUED)
SPEND = Step(Action.SPEND)
CHECK = Step(Action.CHECK)
ACQUIRE_AGAIN = Step(Action.ACQUIRE_AGAIN)
GIVE_UP = Step(Action.GIVE_UP)
UNTIL_TOLD = Step(Action.WAIT, 3_600_000_000_000)

_process = os.getpid()


def after_fork() -> None:
    """In a forked child: permits taken so far are the parent's."""
    global _process
    _process = os.getpid()


on_fork(after_fork)


class RemoteReport:
    """How things stand."""

    __slots__ = ("_doubt", "_reason", "_rows")

    def __init__(self, said: list[Any], limits: Sequence[Limit]) -> None:
        rows, self._reason, self._doubt = said
        self._rows: list[Row] = rows_in(rows, limits)

    def rows(self) -> list[Row]:
        return self._rows

    def reason(self) -> str:
        return self._reason  # type: ignore[no-any-return]

    def in_doubt(self) -> float:
        return self._doubt  # type: ignore[no-any-return]


class RemoteSynced(RemoteReport):
    """What the ledger says of leases of tokens."""

    __slots__ = ("answers", "paused_ns", "quarantined_ns", "sent_ns")

    def __init__(self, said: list[Any], limits: Sequence[Limit], sent_ns: int) -> None:
        report, answers, self.paused_ns, self.quarantined_ns = said
        RemoteReport.__init__(self, report, limits)
        self.answers: tuple[lease.Answer | None, ...] = tuple(map(answer_in, answers))
        self.sent_ns = sent_ns


class RemoteDecision:
    """A service's answer to `Acquire`."""

    __slots__ = (
        "__weakref__",
        "_again_ns",
        "_came",
        "_checked",
        "_delayed",
        "_doubt",
        "_entered",
        "_expires_at",
        "_promise",
        "_reason",
        "_refused",
        "_rows",
        "_spend_at",
        "_told",
        "costs",
        "ended",
        "expires",
        "held",
        "ledgers",
        "owned",
        "permit",
        "process",
        "rules",
        "session",
        "spend",
        "verdict",
        "void",
        "waker",
    )  # fmt: skip

    def __init__(self, ledgers: HttpLedgers, rules: tuple[Rule, ...], costs: tuple[int, ...]) -> None:
        self.ledgers = ledgers
        self.rules = rules
        self.costs = costs
        self.process = _process
        self.verdict = -1
        self.waker: Any = None
        # The session in which it was requested, and its number there; 0: not yet.
        self.session = self.permit = 0
        # On our clock: when the permit may be spent, and until when. And both on the server's.
        self.spend = self.expires = self._spend_at = self._expires_at = self._came = 0
        self.held = self.owned = self.void = False
        self._delayed = self._checked = self._entered = self._refused = self._told = False
        self.ended = False
        self._rows: list[Row] = []
        self._reason = "limit"
        self._doubt = 0.0
        self._again_ns: int | None = None
        self._promise: str | None = None

    def __del__(self) -> None:
        # A finalizer neither locks nor sends: what it says travels with the next batch.
        if not getattr(self, "permit", 0) or self.ended or self.process != _process:
            return
        channel = self.ledgers.engine.channel
        if self.verdict == QUEUED or (self.verdict == GRANTED and not self.owned):
            # A signal's handler has raised between the answer and the permit.
            channel.withdrawn.append((self.session, self.permit))
            channel.ring()
        elif self.held:
            # Of a cycle that is freed, this may be called before the permit says that it was dropped.
            self.drop()
        else:
            channel.forgotten.append((self.session, self.permit))

    # -- what the service says ---------------------------------------------------------------------------

    def numbered(self, session: int, id: int) -> None:
        self.session, self.permit = session, id
        self.ledgers.engine.channel.decisions[id] = self

    def apply(self, said: list[Any], sample: Sample | None) -> None:
        """The answer, or later the message that the wait is over."""
        verdict, spend_at, expires_at, held, rows, reason, doubt, again, self._promise, revoked = said
        if verdict == QUEUED:
            with self.ledgers.engine.channel.once:
                if not self._told:  # the message may have been faster than the answer
                    self._reason, self.verdict = reason, QUEUED
            return
        self._reason, self._doubt, self._again_ns = reason, doubt, again
        self._rows = rows_in(rows, [rule.limit for rule in self.rules]) if rows else []
        self.held = held
        if verdict == GRANTED:
            self._delayed = spend_at > 0
            self._spend_at, self._expires_at = spend_at, expires_at
            self.reckon(sample)
            self.void = revoked
        # Last: another thread may look at it just now.
        self.verdict = verdict

    def tell(self, said: list[Any], sample: Sample | None) -> None:
        """The wait is over: with a permit, or without one."""
        with self.ledgers.engine.channel.once:
            self._told = True
            self._refused = said[0] != GRANTED
            if said[0] != QUEUED:
                self.apply(said, sample)
            else:
                self._rows = rows_in(said[4], [rule.limit for rule in self.rules]) if said[4] else []
                self._reason, self._doubt, self.verdict = said[5], said[6], QUEUED
        self.wake()

    def reckon(self, sample: Sample | None) -> None:
        """When the permit may be spent by our clock, after another look at the server's."""
        if sample is None:
            self.spend = self._came = SYSTEM.now()
            self.expires = 0
            return
        drift = self.ledgers.engine.drift
        self.spend = sample.latest(self._spend_at, drift) if self._delayed else sample.received
        self._came = sample.earliest(self._spend_at, drift) if self._delayed else sample.sent
        self.expires = sample.earliest(self._expires_at, drift)

    def move(self, spend_at: int, expires_at: int, sample: Sample | None) -> None:
        """A reserved slot has another time."""
        self._spend_at, self._expires_at = spend_at, expires_at
        self.reckon(sample)
        self.wake()

    def lose(self) -> None:
        """It is the ledger's again: the server says so, or does not know it any more.

        A permit that was granted for now stays good until it expires, as the ledger has counted it. One that was
        promised does not: no server keeps the promise.
        """
        if self.verdict == QUEUED or (self.verdict == GRANTED and SYSTEM.now() < self.spend):
            self.void = True
        elif self.verdict == GRANTED and self.held:
            self.expires = min(self.expires, SYSTEM.now())
        self.wake()

    def wake(self) -> None:
        if self.waker is not None:
            self.waker.wake()

    # -- what the front end sees -------------------------------------------------------------------------

    @property
    def revoked(self) -> bool:
        return self.void

    def rows(self) -> list[Row]:
        return self._rows

    def reason(self) -> str:
        return self._reason

    def in_doubt(self) -> float:
        return self._doubt

    def spendable(self) -> bool:
        return self.verdict == GRANTED and not self._delayed and SYSTEM.now() <= self.expires

    def next_step(self) -> Step:
        if self.void:
            self.withdraw()
            return ACQUIRE_AGAIN
        if self.verdict == QUEUED and not self._refused:
            return UNTIL_TOLD
        if self.verdict != GRANTED:
            return GIVE_UP
        now = SYSTEM.now()
        if now < self.spend:
            return Step(Action.WAIT, self.spend - now)
        if now > self.expires_at_most():
            if not self._checked:
                self._checked = True
                return CHECK
            self.withdraw()
            self.void = True
            return ACQUIRE_AGAIN
        return SPEND

    def expires_at_most(self) -> int:
        """A permit that the server renews is good for as long as the server knows that we live."""
        if (
            self.held
            and not self.void
            and self.expires
            and self.session == self.ledgers.engine.channel.number
        ):
            return max(self.expires, self.ledgers.engine.channel.alive_until())
        return self.expires

    def wait_ns(self) -> int:
        return max(0, self.spend - SYSTEM.now()) if self._delayed else 0

    def expires_in_ns(self) -> int:
        return self.expires_at_most() - SYSTEM.now()

    def flight_ns(self) -> int:
        return max(0, SYSTEM.now() - self.spend)

    def late_ns(self) -> int:
        return SYSTEM.now() - self._came

    def hand_over(self) -> str:
        if not self.ended:
            self.ended = True
            self.ledgers.engine.channel.forgotten.append((self.session, self.permit))
        return self._promise or ""

    def reserve_again_ns(self) -> int | None:
        return self._again_ns

    def enter(self) -> bool:
        """A bare permit brackets a call from now on; whether its ledger counts it until its end."""
        brackets = any(rule.bracketed and cost for rule, cost in zip(self.rules, self.costs, strict=True))
        if self.held or self._entered or self.void or not brackets or self.process != _process:
            return False
        self._entered = self.held = True
        self.spend = SYSTEM.now()
        self._post("enter")
        return True

    def end(self, how: int, actual: tuple[int, ...] | None) -> None:
        """Once."""
        if self.process == _process and not self.ended:
            self._post("release", how, actual)
            self.ended = True

    def drop(self) -> None:
        if not self.ended:
            channel = self.ledgers.engine.channel
            channel.dropped.append((self.session, self.permit))
            channel.ring()
            self.ended = True

    def withdraw(self) -> None:
        # One that has no number yet was not sent, and is not: its request has no caller any more.
        if self.permit and not self.ended and self.process == _process:
            self.ended = True
            self._post("withdraw")

    def _post(self, *words: Any) -> None:
        self.ledgers.engine.channel.post(PermitRequest(self, *words))


def taken_here(decision: RemoteDecision) -> bool:
    """Whether this process took the permit."""
    return decision.process == _process
