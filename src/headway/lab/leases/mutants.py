"""Leases with one rule broken each: the worlds have to find them all.

As in `headway.lab.mutants`: each is the real thing with one line changed, as a likely mistake would change it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headway.core.holder import Holder
from headway.core.lease import Answer, Lease, LeaseLedger, Sync
from headway.core.limits import Limit
from headway.core.tokens import WindowTokens, total
from headway.lab.clocks import BILLION
from headway.lab.leases.worlds import Outcome, World, draw, run_world


class CountsFromTheAnswer(Holder):
    """The lease counted from when the answer arrived."""

    def answered(self, now: int, answer: Answer) -> bool:
        self.sent = [now] * len(self.sent)
        return super().answered(now, answer)


class NeverStops(Holder):
    """Spends what it holds, whether the lease has ended or not."""

    def wait(self, now: int, cost: int) -> int:
        return self.tokens.ledger.wait(now, cost)


class IgnoresDrift(Holder):
    """All clocks taken for perfect."""

    def __init__(self, limit: Limit, client: str, terms: Any) -> None:
        super().__init__(limit, client, terms._replace(drift_ppm=0, ledger_drift_ppm=0))


class GivesUpCalls(Holder):
    """A call without an answer is given up, what it handed back is taken back, and a new call is made."""

    def call(self, now: int, waiting: int = 0) -> Sync:
        if self.pending is not None:
            self.tokens.deposit(now, self.pending.back)
            self.held += total(self.pending.back)
            self.pending = None
        return super().call(now, waiting)


class KeepsVoidTokens(Holder):
    """Told that its lease is over, it begins a new one and keeps its tokens."""

    def answered(self, now: int, answer: Answer) -> bool:
        tokens = self.tokens
        heard = super().answered(now, answer)
        if heard and answer.void:
            self.tokens = tokens
        return heard


class ForgetsThePast(LeaseLedger):
    """Tokens are lent as if all were usable at once."""

    def sync(self, now: int, ask: Sync) -> Answer | None:
        answer = super().sync(now, ask)
        if answer is None:
            return None
        return answer._replace(tokens=tuple((count, 0) for count, _ in answer.tokens))


class TakesBackFresh(LeaseLedger):
    """The tokens of a client that vanished come back as if none had been spent."""

    def _end(self, now: int, client: str, lease: Lease, until: int) -> None:
        if lease.held > 0:
            self.tokens.deposit(now, ((lease.held, 0),))
            self._book(lease, 0)
        super()._end(now, client, lease, until)


class HearsTwice(LeaseLedger):
    """A repeated call is a new one."""

    def sync(self, now: int, ask: Sync) -> Answer | None:
        lease = self.leases.get(ask.client)
        if lease is not None:
            lease.seq = ask.seq - 1
        return super().sync(now, ask)


class KnowsNoNames(LeaseLedger):
    """Whatever a client says is about the lease that it has now, or about a new one."""

    def sync(self, now: int, ask: Sync) -> Answer | None:
        self.expire(now)
        lease = self.leases.get(ask.client)
        if ask.lease and lease is None:
            self.named += 1
            lease = self.leases[ask.client] = Lease(self.named)
            back = self.tokens.withdraw(now, ask.holding + total(ask.back))
            self._book(lease, total(back))
            lease.end = now + self.ttl
        return super().sync(now, ask if lease is None or not ask.lease else ask._replace(lease=lease.number))


class ForgetsTransit(LeaseLedger):
    """Of a client that vanished no call is thought to be on its way."""

    def _end(self, now: int, client: str, lease: Lease, until: int) -> None:
        if lease.held > 0 and isinstance(self.tokens, WindowTokens):
            rule = self.tokens.rule
            self.tokens.ledger.deposit(now, until + rule.gap, lease.held)
            self._book(lease, 0)
        super()._end(now, client, lease, until)


@dataclass(frozen=True)
class Mutant:
    """A fault, and what a world needs so that it can show."""

    name: str
    holder: type[Holder] = Holder
    lender: type[LeaseLedger] = LeaseLedger
    fixed: dict[str, Any] = field(default_factory=dict)

    def world(self, seed: int) -> World:
        return draw(seed, **self.fixed)

    def run(self, world: World) -> Outcome:
        return run_world(world, self.holder, self.lender)


BUSY = {"n": 10, "per": BILLION, "demand": 10.0}

LATE = {
    "n": 1,
    "per": 3 * BILLION,
    "ttl": BILLION,
    "max_transit": 2 * BILLION,
    "kills": 12,
    "steps": (),
    "clients": 2,
}

MUTANTS = (
    Mutant("lease counted from the answer", CountsFromTheAnswer, fixed={**BUSY, "kind": "window"}),
    Mutant("spends after the end of its lease", NeverStops),
    Mutant("drift of clocks ignored", IgnoresDrift, fixed={**BUSY, "drift_ppm": 50_000}),
    Mutant("handed back and kept", GivesUpCalls),
    Mutant("tokens kept when the lease is over", KeepsVoidTokens),
    Mutant("tokens travel without their past", lender=ForgetsThePast),
    Mutant("tokens of a vanished client come back fresh", lender=TakesBackFresh),
    Mutant("a repeated call is heard twice", lender=HearsTwice),
    Mutant("leases without names", lender=KnowsNoNames),
    Mutant(
        "transit of a vanished client forgotten",
        lender=ForgetsTransit,
        fixed={**BUSY, "kind": "remote", **LATE},
    ),
)


def hunt(mutant: Mutant, worlds: int, first: int = 0) -> tuple[int, Outcome] | None:
    """The first world that shows the fault, as (how many were needed, what happened there); None: not found."""
    for number in range(worlds):
        outcome = mutant.run(mutant.world(first + number))
        if outcome.above:
            return number + 1, outcome
    return None
