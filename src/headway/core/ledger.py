"""What every limit can be asked: the contract between the algorithms and everything above them.

The naive contract is one method, "may I?", that looks and takes in one go. It is enough until two limits must
agree (all or none), until a caller looks without taking, or until a waiter must know *when*. So a
ledger splits the question in two, and everything else follows:

    wait(now, cost)   how long until `cost` could be taken: 0 means now; changes nothing that can be observed
    take(at, cost)    take it, at a time at which `wait` was 0; returns a mark by which it can be found again

What brackets a call is taken by `take_held`: its holder will say how it ended. Where the rule is `bracketed` that makes
a difference, and what was taken by `take` and brackets a call after all is moved by `enter`. Everywhere else the two
are one.

Peek is `wait` alone. Try is `wait`, and `take` if it was 0. All or none is `wait` on each, then `take` on each.
Waiting is sleeping for what `wait` said and asking again. A reservation is `take` at a time in the future, for
ledgers whose rule `promises`.

`wait` is exact (one tick earlier is refused, at the time it is granted) unless permits are out. The time at which they
come back is unknown: `wait` is then the least it can be, and `latest_wait` says when the request is granted even if
nothing is handed back; FOREVER if only a hand-back helps.

What was taken may end in four ways. `complete` (it happened, and is over), `cancel` (it never happened), `abandon`
(the outcome is unknown), `settle` (it cost something else). One law holds for every kind: *cancel never mints; it
restores exactly when nothing came after.*

Times are integer ticks of one clock that never runs backward; `walled` rules count theirs from the Unix epoch.
A tick is a nanosecond here, and whatever its clock can tell in a shared ledger: the algorithms know nothing of
it, only the rule does that turns a limit into numbers. A script on a server has doubles, in which integers are
exact below 2**53, so numbers in longer ticks end at 2**52 and not at 2**62 (`horizon`): what is counted from a
present of some 2**51 microseconds stays exact, and both kinds of ledger give the same answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.core.limits import Limit

FOREVER = 1 << 62
LONG_AGO = -(1 << 62)
EXACT = 1 << 52


def ticks(ns: int, tick_ns: int) -> int:
    """A span in whole ticks, rounded up."""
    return -(-ns // tick_ns)


class Rule:
    """A limit as integers, all in ticks of `tick_ns`; shared by the ledgers of all its keys.

    `horizon` is where numbers end: no debt and no reservation goes further, in ticks or in permits. A power of two.
    """

    __slots__ = (
        "bracketed", "capacity", "held", "horizon", "limit", "promises", "spaced", "tick_ns", "uses_wall_clock",
    )  # fmt: skip

    def __init__(
        self,
        limit: Limit,
        tick_ns: int = 1,
        *,
        held: bool = False,
        bracketed: bool = False,
        promises: bool = False,
        spaced: bool = False,
        uses_wall_clock: bool = False,
    ) -> None:
        self.limit = limit
        self.capacity: int = limit.capacity
        self.tick_ns = tick_ns
        self.horizon = FOREVER if tick_ns == 1 else EXACT
        # Whether every permit is held until it ends; or those that bracket a call, and no others.
        self.held = held
        self.bracketed = bracketed
        self.promises = promises
        self.spaced = spaced
        self.uses_wall_clock = uses_wall_clock

    def open(self) -> Ledger:
        """A fresh ledger: nothing was ever taken."""
        raise NotImplementedError

    def open_for(self, key: str | None) -> Ledger:
        """The same; what is borrowed from another place has to know for which key."""
        return self.open()

    def recall(self, limit: Limit, tick_ns: int, own: tuple[int, ...]) -> None:
        """Be what was written down as these numbers, instead of being made of a limit; see `rules.rule_from_record`."""
        raise NotImplementedError


class Ledger:
    """One rule's memory of one key; the methods here are what holds where a kind says nothing else."""

    __slots__ = ("tally",)

    def __init__(self) -> None:
        # What a permit notes at its grant besides its mark; each kind has its own use for it.
        self.tally = 0

    def get_rule(self) -> Rule:
        raise NotImplementedError

    def wait(self, now: int, cost: int) -> int:
        """Ticks until `cost` could be taken; 0: now. A lower bound while permits are out."""
        raise NotImplementedError

    def asked(self, now: int, cost: int) -> None:
        """A request came for so much, and was granted or not. Only what is borrowed counts them."""

    def check(self, now: int) -> None:
        """Raise if a request that is not granted now is better told that its lender is away; see `core.borrowed`."""

    def may_refuse(self) -> bool:
        """Whether `check` has nothing to say or to note, so that a refusal needs no more than the wait."""
        return True

    def latest_wait(self, now: int, cost: int) -> int:
        """Ticks until `cost` can certainly be taken, whatever is or is not handed back."""
        return self.wait(now, cost)

    def take(self, at: int, cost: int) -> int:
        """Take `cost` at a time at which `wait` is 0; returns the mark of this grant."""
        raise NotImplementedError

    def take_held(self, at: int, cost: int) -> int:
        """`take` for what brackets a call: its end will be told."""
        return self.take(at, cost)

    def enter(self, now: int, cost: int, mark: int, tally: int, at: int) -> int:
        """What was taken brackets a call after all, which is not dispatched before `at`: its mark from now on."""
        return mark

    def slot(self, now: int, cost: int) -> int:
        """The time for which `cost` can be reserved, or -1: too many are reserved already, or no time is known."""
        wait = self.wait(now, cost)
        return now + wait if wait < FOREVER and self.exact(now, cost) else -1

    def slot_after(self, now: int, cost: int) -> int:
        """Ticks until `slot` promises a time again; 0: it does now."""
        return 0

    def use(self, now: int, mark: int) -> int:
        """What was taken is about to be spent: ticks its holder still has to wait; 0: go.

        Where the rule is `spaced`, every use counts and every spender must ask; others need not.
        """
        return 0

    def renew(self, now: int, cost: int, mark: int) -> int:
        """Its holder is still there: the mark by which it is found from now on; -1: too late, it has expired."""
        return mark

    def complete(self, now: int, cost: int, mark: int) -> None:
        """It happened and is over."""

    def abandon(self, now: int, cost: int, mark: int) -> None:
        """Whether it happened is unknown."""

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        """It never happened; `tally` is what the ledger's was at the grant."""

    def settle(self, now: int, cost: int, mark: int, tally: int, actual: int) -> None:
        """It happened, and cost `actual` instead of `cost`; more than was taken becomes debt."""

    def remaining(self, now: int) -> int:
        """What could be taken at once, now."""
        raise NotImplementedError

    def reset_after(self, now: int) -> int:
        """Ticks until the ledger is as if it were new, if nothing more is taken; FOREVER if unknown."""
        raise NotImplementedError

    def in_flight(self, now: int) -> int:
        """What is checked out and has not ended."""
        return 0

    def exact(self, now: int, cost: int) -> bool:
        """Whether `wait` is the time itself and not only a lower bound."""
        return True

    def idle(self, now: int) -> bool:
        """Whether a fresh ledger would behave the same from now on."""
        return self.reset_after(now) == 0

    def exhaust(self, now: int) -> None:
        """Count everything as just used: what was sent before this moment is unknown."""

    def reconfigure(self, rule: Rule, now: int) -> None:
        """Go on under another rule of the same kind, without forgetting what was taken."""
        raise NotImplementedError

    def copy(self) -> Ledger:
        """The same state, to try something out on."""
        raise NotImplementedError

    def mend(self, now: int) -> None:
        """Be consistent again after an exception came in the middle of `wait` or `take`, which only happens to
        interpreted code; what the call had taken may stay taken, as if it had been abandoned."""

    def state(self) -> tuple[int, ...]:
        """The state as plain numbers: equal states behave equally."""
        raise NotImplementedError

    def restore(self, state: tuple[int, ...], tally: int) -> None:
        """Be in this state, as `state` once told it; for a ledger just opened, under the rule it was kept by."""
        raise NotImplementedError
