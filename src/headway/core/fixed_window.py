"""Calendar quotas: so many per hour, day or month, counted from zero when a new one begins.

The weakness is known: n at the end of one window and n at the beginning of the next are 2n in a moment. It is
here because many remotes count exactly so, and then counting like them is right: the time at which their window
ends is the one thing a caller wants to know, and it is in every answer. Against a remote whose edge is not
known exactly, use a `Window`.

State is the end of the current window and what was used in it. A window is entered by the first call at or
after the end of the old one; times are ticks since the Unix epoch, because calendars are. If the wall
clock is set back, the window that was entered stays the current one: it is never counted twice.

Worked example, 3/day in UTC: at 23:59 three calls go and a fourth is told to wait 60 s. At 00:00 the count
starts at zero. A cancelled call is given back within its own window, and is worth nothing after it: the mark is
the window's end, and `tally` counts windows, since under another rule (`reconfigure`) two of them may end at the same
time. What is settled for more than was taken counts as used, also beyond n; the next window starts at zero all
the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headway.core.ledger import FOREVER, LONG_AGO, Ledger, Rule, ticks

if TYPE_CHECKING:
    from headway.core.limits import FixedWindow, Limit


def window_in_ticks(limit: FixedWindow, tick_ns: int, now: int) -> tuple[int, int]:
    """The ticks of the window that contains `now`; an edge between two ticks belongs to the later one."""
    start, end = limit.window_of(now * tick_ns)
    return ticks(start, tick_ns), ticks(end, tick_ns)


def window_between(edges: tuple[int, ...], now: int) -> tuple[int, int]:
    """The ticks of one of two windows of which three edges are known; later ones are as long as the second."""
    start, end, next_end = edges
    if now < end:
        return start, end
    later = (now - end) // (next_end - end) * (next_end - end)
    return end + later, next_end + later


class FixedWindowRule(Rule):
    """`window_of(now)` is the first tick of the window that contains `now`, and the first one after it."""

    __slots__ = ("window_of",)

    def __init__(self, limit: FixedWindow, tick_ns: int = 1) -> None:
        Rule.__init__(self, limit, tick_ns, uses_wall_clock=True)
        self.window_of = limit.window_of if tick_ns == 1 else partial(window_in_ticks, limit, tick_ns)

    def recall(self, limit: Limit, tick_ns: int, own: tuple[int, ...]) -> None:
        Rule.__init__(self, limit, tick_ns, uses_wall_clock=True)
        self.window_of = partial(window_between, own)

    def open(self) -> Ledger:
        return FixedWindowLedger(self)


class FixedWindowLedger(Ledger):
    __slots__ = ("ends", "rule", "used")

    def __init__(self, rule: FixedWindowRule) -> None:
        self.tally = 0
        self.rule = rule
        self.ends = LONG_AGO
        self.used = 0

    def get_rule(self) -> Rule:
        return self.rule

    def roll(self, now: int) -> None:
        if now >= self.ends:
            self.tally += 1
            self.used = 0
            self.ends = self.rule.window_of(now)[1]

    def wait(self, now: int, cost: int) -> int:
        if cost > self.rule.capacity:
            return FOREVER
        self.roll(now)
        return 0 if cost <= self.rule.capacity - self.used else self.ends - now

    def take(self, at: int, cost: int) -> int:
        self.roll(at)
        self.used += cost
        return self.ends

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        if mark == self.ends and tally == self.tally:
            self.used -= cost

    def settle(self, now: int, cost: int, mark: int, tally: int, actual: int) -> None:
        self.roll(now)
        if actual < cost:
            self.cancel(now, cost - actual, mark, tally)
        else:
            self.used = min(self.used + actual - cost, self.rule.horizon)

    def remaining(self, now: int) -> int:
        self.roll(now)
        return max(0, self.rule.capacity - self.used)

    def reset_after(self, now: int) -> int:
        self.roll(now)
        return self.ends - now

    def idle(self, now: int) -> bool:
        return now >= self.ends or self.used == 0

    def exhaust(self, now: int) -> None:
        self.roll(now)
        self.used = max(self.used, self.rule.capacity)

    def reconfigure(self, rule: Rule, now: int) -> None:
        self.roll(now)
        self.rule = rule  # type: ignore[assignment]
        self.ends = self.rule.window_of(now)[1]

    def copy(self) -> Ledger:
        twin = FixedWindowLedger(self.rule)
        twin.ends = self.ends
        twin.used = self.used
        twin.tally = self.tally
        return twin

    def state(self) -> tuple[int, ...]:
        return (self.ends, self.used)

    def restore(self, state: tuple[int, ...], tally: int) -> None:
        self.ends, self.used = state
        self.tally = tally
