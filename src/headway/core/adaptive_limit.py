"""A limit whose rate is found by trial: the value, and the ledger that paces calls at the rate of the moment.

What the rate is to be, `headway.core.adaptive` decides. A ledger turns it into permits. The naive way is to look at the
time of the last call: a caller that wakes a millisecond late has lost that millisecond for ever, and of 1000 calls per
second half are lost. So the ledger remembers the next free time, as a spacing does, and a caller that is late by up to
`CATCH_UP` takes its slot as if it had been on time. No more than that is saved up: a rate that was found for an even
stream is no promise that a burst is accepted.

    wait      until `next`, the first free time, less CATCH_UP
    take      next = max(next, now) + cost / rate

The ends of permits that bracket a call tell how long a call takes, which is how long answers to the old rate keep
coming after a step. A rate falls while callers wait, so a wait is what it is now and no promise, and nothing can be
reserved.

What was learned is kept for `FORGOTTEN_AFTER` without a call. After that the ledger begins anew, whether or not it is
forgotten: so a ledger may be reclaimed when it is idle, as every other may.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from headway.core.adaptive import SECOND, AdaptiveRate
from headway.core.durations import MAX, Duration, Scanner, count_of, duration_text, to_ns
from headway.core.ledger import LONG_AGO, Ledger, Rule
from headway.core.limits import Limit
from headway.errors import InvalidLimit

CATCH_UP: Final = 20_000_000
FORGOTTEN_AFTER: Final = 3600 * SECOND

Pair = tuple[int, int]
"""So many in so many ns."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Adaptive(Limit):
    """A rate between `least` and `most` that finds the remote's limit by itself, from `limiter.feedback`.

    Rates are strings such as "10/s", (count, per), or calls per second. It begins with `start`. A refusal brings it to
    what was accepted, less a little; answers that are no refusals let it rise. It talks to no other process: each
    client finds its own share of what the remote allows.

    >>> Adaptive("10/s", least="1/s", most="100/s")
    Adaptive('10/s', least='1/s', most='100/s')
    >>> str(Adaptive("10/s", "1/s", "100/s")), str(Adaptive(1, 1, 100))
    ('adaptive 1/s to 100/s from 10/s', 'adaptive 1/s to 100/s')
    >>> Adaptive("1/minute", least="1/minute", most="2/s").most
    2.0
    """

    kind: ClassVar[str] = "adaptive"
    start_pair: Pair
    least_pair: Pair
    most_pair: Pair

    def __init__(
        self,
        start: str | float | tuple[int, Duration],
        least: str | float | tuple[int, Duration],
        most: str | float | tuple[int, Duration],
    ) -> None:
        self._set(
            start_pair=_rate("start", start), least_pair=_rate("least", least), most_pair=_rate("most", most)
        )
        if not self.least <= self.start <= self.most:
            problem = (
                f"least={self.least:g}/s, start={self.start:g}/s, most={self.most:g}/s are not in this order"
            )
            raise InvalidLimit(repr(self), None, "least <= start <= most", problem)

    @property
    def start(self) -> float:
        """Calls per second at the beginning."""
        return _per_second(self.start_pair)

    @property
    def least(self) -> float:
        """Calls per second that it never goes below."""
        return _per_second(self.least_pair)

    @property
    def most(self) -> float:
        """Calls per second that it never exceeds."""
        return _per_second(self.most_pair)

    @property
    def per_ns(self) -> int:
        return SECOND

    @property
    def capacity(self) -> int:
        return max(1, math.ceil(self.most))

    def share(self, part: float) -> Limit:
        pairs = [
            (count, f"{int(per_ns / part)}ns")
            for count, per_ns in (self.start_pair, self.least_pair, self.most_pair)
        ]
        return Adaptive(*pairs)

    def lowered_to(self, count: int, per_ns: int) -> Adaptive:
        """The same with no more than so many in so many ns.

        >>> Adaptive(10, 1, 100).lowered_to(300, 60 * SECOND)
        Adaptive('300/minute', least='1/s', most='300/minute')
        """
        bound = (count, per_ns)
        pairs = [
            (pair[0], f"{pair[1]}ns") if _per_second(pair) <= _per_second(bound) else (count, f"{per_ns}ns")
            for pair in (self.start_pair, self.least_pair, self.most_pair)
        ]
        return Adaptive(*pairs)

    def __str__(self) -> str:
        start = "" if self.start_pair == self.least_pair else f" from {_text(self.start_pair)}"
        return f"adaptive {_text(self.least_pair)} to {_text(self.most_pair)}{start}"

    def __repr__(self) -> str:
        start, least, most = map(_text, (self.start_pair, self.least_pair, self.most_pair))
        return f"Adaptive({start!r}, least={least!r}, most={most!r})"


def _text(pair: Pair) -> str:
    return f"{pair[0]}/{duration_text(pair[1])}"


def _per_second(pair: Pair) -> float:
    return pair[0] * SECOND / pair[1]


def _rate(name: str, value: object) -> Pair:
    pair: Pair | None = None
    if isinstance(value, str):
        scan = Scanner(value, "rate")
        pair = scan.rate()
        if scan.peek():
            scan.fail("nothing more after the rate")
    elif isinstance(value, tuple) and len(value) == 2:
        count, per_ns = count_of(value[0]), to_ns(value[1])
        pair = None if count is None or per_ns is None else (count, per_ns)
    elif isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 <= value <= 1e9:
        whole = int(value)
        pair = (whole, SECOND) if whole == value else (1, round(SECOND / value))
    if (
        pair is None
        or not (0 < pair[0] <= MAX and 0 < pair[1] <= MAX)
        or not 1e-9 <= _per_second(pair) <= 1e9
    ):
        accepted = 'a rate such as "10/s", (10, "1s") or 10, from one in 31 years to 1e9/s'
        raise InvalidLimit(f"{name}={value!r}", None, accepted)
    return pair


class AdaptiveRule(Rule):
    """Calls at the rate of the moment. `spaced`: every decision is under the store's lock, and so is every answer."""

    __slots__ = ("least", "most", "start")

    def __init__(self, limit: Adaptive) -> None:
        Rule.__init__(self, limit, bracketed=True, spaced=True)
        self.start: float = limit.start
        self.least: float = limit.least
        self.most: float = limit.most

    def open(self) -> Ledger:
        return AdaptiveLedger(self)


class AdaptiveLedger(Ledger):
    """One key's rate, and its next free time.

    >>> ledger = AdaptiveRule(Adaptive(10, 1, 100)).open()
    >>> mark = ledger.take_held(0, 1)
    >>> ledger.wait(0, 1), ledger.wait(60_000_000, 1)                        # a tenth of a second, less CATCH_UP
    (80000000, 20000000)
    >>> ledger.complete(50_000_000, 1, mark)
    >>> ledger.refused(50_000_000)
    >>> round(ledger.rate.value, 1)
    8.1
    """

    __slots__ = ("before", "last", "next", "rate", "rule", "touched")

    def __init__(self, rule: AdaptiveRule) -> None:
        Ledger.__init__(self)
        self.rule = rule
        self.rate = AdaptiveRate(rule.start, rule.least, rule.most)
        self.next = LONG_AGO
        # When the last call was taken, and what `next` was before it.
        self.last = LONG_AGO
        self.before = LONG_AGO
        self.touched = LONG_AGO

    def get_rule(self) -> Rule:
        return self.rule

    def _refresh(self, now: int) -> None:
        """What was learned long ago says nothing any more."""
        if self.touched != LONG_AGO and now - self.touched >= FORGOTTEN_AFTER:
            self.rate = AdaptiveRate(self.rule.start, self.rule.least, self.rule.most)
            self.next = self.last = self.touched = LONG_AGO

    def _gap(self, cost: int) -> int:
        return math.ceil(cost * SECOND / self.rate.value)

    # -- decisions ---------------------------------------------------------------------------------------

    def wait(self, now: int, cost: int) -> int:
        self._refresh(now)
        return max(0, self.next - CATCH_UP - now)

    def take(self, at: int, cost: int) -> int:
        self._refresh(at)
        self.touched = at
        self.rate.sent(at)
        self.last, self.before = at, self.next
        self.next = max(self.next, at) + self._gap(cost)
        return -1 - at

    def take_held(self, at: int, cost: int) -> int:
        self.take(at, cost)
        return at

    def enter(self, now: int, cost: int, mark: int, tally: int, at: int) -> int:
        # Its slot cannot be given back any more: it has another mark.
        return at

    def complete(self, now: int, cost: int, mark: int) -> None:
        if mark >= 0:
            self.rate.ended(now - mark)

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        """The last call gives its slot back; an earlier one cannot, as the later ones relied on it."""
        if self.last == (mark if mark >= 0 else -1 - mark):
            self.next, self.last = self.before, LONG_AGO

    def remaining(self, now: int) -> int:
        return 1 if self.wait(now, 1) == 0 else 0

    def reset_after(self, now: int) -> int:
        self._refresh(now)
        return 0 if self.touched == LONG_AGO else self.touched + FORGOTTEN_AFTER - now

    def exact(self, now: int, cost: int) -> bool:
        return False

    def exhaust(self, now: int) -> None:
        self.next = max(self.next, now + CATCH_UP + self._gap(1))
        self.touched = now

    # -- what the remote answered ------------------------------------------------------------------------

    def accepted(self, now: int) -> None:
        """The remote has served a call."""
        self._refresh(now)
        self.touched = max(self.touched, now)
        self.rate.accepted(now)

    def refused(self, now: int) -> None:
        """The remote has refused a call, for its rate: the next one waits as the new rate says."""
        self._refresh(now)
        self.touched = max(self.touched, now)
        self.rate.refused(now)

    # -- the rest of the contract ------------------------------------------------------------------------

    def reconfigure(self, rule: Rule, now: int) -> None:
        self.rule = rule  # type: ignore[assignment]
        self.rate.bounded(self.rule.least, self.rule.most)

    def copy(self) -> Ledger:
        twin = AdaptiveLedger(self.rule)
        twin.rate = self.rate.copy()
        twin.next = self.next
        twin.last = self.last
        twin.before = self.before
        twin.touched = self.touched
        return twin
