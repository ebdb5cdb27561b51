"""A rate that finds a remote's limit from its answers alone, without any word with other clients.

The naive way is to send faster until a call is refused, and then to halve (AIMD). It uses three quarters of the limit
at best, because it remembers nothing of where it was refused, and it is refused again as soon as it has climbed back.
AWS's adaptive mode remembers the rate of the last refusal and climbs towards it along a cubic curve, which is slow near
that rate and fast far from it. Two things are left to gain. It goes back by 30 %, although the remote has just shown
what it accepts. And it comes back every few seconds for ever, although the remote has refused at the same place each
time. The first costs throughput, the second costs refusals.

The state is a point on a curve. `ceiling` is the rate that the remote accepted when it refused last; `floor` is where
the rate went then; `age` is how long the rate has been climbing since, and `period` how long the climb is to take:

    rate                                                ceiling * (1 + RISE * (age / period - 1) ** 3)
      |                                                  /
      |  refused                                       /
      |     x - - - - - - - - - - - - - __________----        <- ceiling: what was accepted, as far as it is known
      |     |                 ___-------
      |     |          __----
      |     |      _--     ceiling - (ceiling - floor) * (1 - age / period) ** 3
      |     |   _-
      |     |_-        <- floor: what was accepted, less MARGIN
      +-----+---------------------------+-------------------- age
            0                        period

*After a refusal* the ceiling is what was accepted: the rate times the accepted share of the answers since the last
step down. That is one number for a refusal by the way (1 of 100 was refused: 99 % of the rate) and for a limit that was
halved (50 of 100: half of the rate). Some answers are added as if they had been accepted (`PRIOR`): one refusal is no
proof that nothing is accepted. If nothing at all was accepted since the last step, that says nothing of what would be:
the rate is halved, and the ceiling becomes what was accepted *on the whole*, over a `horizon` of some seconds.

*Answers that are on their way* were asked for at the old rate. A client with 50 calls in flight may hear 50 refusals of
one event, and must not step down 50 times. So a step is followed by a time in which refusals change nothing, a little
longer than a call takes (`latency`, measured by the ends of permits). Refusals that come later are of the new rate.

*Probing is rarer the more stable the remote is.* A refusal near the last ceiling says that the limit is where it was,
and doubles the period, up to `LONGEST`. A refusal elsewhere, or a climb that is not refused well above the ceiling,
says that the limit has changed, and the period begins again with the shortest. The shortest is long enough for
`CALLS` calls, so that a slow client among many is not refused more often, call for call, than a fast one.

*A remote with a long window* accepts far more than its limit for a while, and then nothing: it is the sum over
its window that counts, and a rate of three times the limit is accepted until the window is full. A client that takes
this for the limit swings for ever. Three rules keep it from that. The rate never exceeds `GROWTH` times what is
accepted on the whole. A ceiling is not above what is accepted on the whole, by more than `NEAR`. And if a refusal
shows that the rate before it had overshot, the horizon and with it the shortest period become longer: the client
cannot see the remote's window, but it notices that it is longer than its own horizon.

*The rate climbs only if it is used.* `age` is the time during which calls were sent at nearly the rate. A client
that sends less than it might learns nothing about what it might send, and its rate does not drift upwards overnight. A
refusal of a client that sends less than its rate brings the rate down to what it sends.

Before the first refusal there is no ceiling, and the rate doubles each `DOUBLING`.

Worked example, hidden limit 100/s, start 10/s: the rate doubles until it is refused at 104/s, with one of 60 answers.
The ceiling is 102/s and the floor 96/s. The rate climbs for 2 s to 102/s, is refused again on the way, and goes to
94/s with a ceiling of 100/s. From now on it rests near 100/s, is refused at 101/s, and the period is 4 s, then 8, then
10: one refusal in 15 s, and all the time between 94 and 101.

Numbers are floats, as a rate that is found by trial has no exact value. Time is an integer of nanoseconds, and comes as
an argument. The memory is some twenty numbers, whatever happens.
"""

from __future__ import annotations

import math
from typing import Final

SECOND: Final = 10**9

MARGIN: Final = 0.06
"""The part of what was accepted that the rate stays below after a refusal."""
NEAR: Final = 0.15
"""A refusal this near to the last ceiling, as a part of it, says that the limit is where it was."""
RISE: Final = 0.2
"""How steep the curve is above the ceiling: so much more of it after a second period."""
GROWTH: Final = 1.6
"""The rate is at most so many times what is accepted on the whole, once a refusal has come."""
PRIOR: Final = 6
"""Answers that count as accepted besides those that were."""
REMEMBERED: Final = 60
"""Answers since the last step down that count; when there are more, all of them count half."""
CALLS: Final = 60
LONGEST_FOR_CALLS: Final = 25.0
"""A climb takes at least so many calls, or so many seconds."""
SHORTEST: Final = 2.0
LONGEST: Final = 10.0
"""Seconds that a climb takes at least, and at most unless `PATIENCE` times its shortest is more."""
PATIENCE: Final = 2.0
DOUBLING: Final = 2.0
"""Seconds in which the rate doubles while no refusal has come, if calls are short."""
MOST_DOUBLINGS: Final = 2.0
"""How often it doubles at one answer, at most: there may be minutes between two of them."""
HORIZON: Final = 3.0
LONGEST_STRETCH: Final = 12.0
LONGEST_HORIZON: Final = 60.0
"""Seconds over which it is counted what is accepted on the whole: at least; as far as overshooting stretches it; and as
far as a time in which nothing is accepted does."""
STRETCH: Final = 2.0
SHRINK: Final = 0.85
"""What a refusal after overshooting makes of the horizon, and what one without it does."""
OVERSHOT: Final = 1.2
"""A rate was too high if it was so many times what is accepted on the whole."""
SLOWNESS: Final = 0.7
"""The shortest climb, as a part of the horizon."""
USED: Final = 0.7
"""The part of the rate that must be used for it to climb."""
LEAST_GRACE: Final = 0.1
UNKNOWN_LATENCY: Final = 0.5
"""Seconds after a step in which refusals are of calls sent before it: at least, and where no latency is known."""
LONGEST_LATENCY: Final = 30.0
"""Calls that take longer are no measure of anything."""
RECENT: Final = 16
"""Averages are over about so many calls."""
LONGEST_GAP: Final = 8.0
"""A gap between two calls counts as at most so many times the allowed one: a pause is no lower demand."""
MOST_IDLE: Final = 1.0
"""A gap between two answers counts as at most so many seconds of climbing, or as four calls."""


class AdaptiveRate:
    """Calls per second, between `least` and `most`.

    >>> rate = AdaptiveRate(start=10.0, least=1.0, most=100.0)
    >>> for tenth in range(30):
    ...     rate.sent(tenth * SECOND // 10)
    ...     rate.accepted(tenth * SECOND // 10)
    >>> round(rate.value)                       # it was used and not refused, until it was far above 10/s
    19
    >>> rate.refused(3 * SECOND)
    >>> round(rate.value, 1), round(rate.ceiling, 1)        # what was sent, less the refused and a margin
    (10.4, 11.0)
    """

    __slots__ = (
        "_accepted", "_answered", "_blocked", "_gap", "_gap_allowed", "_lately", "_refused", "_sent", "_span",
        "_stepped", "_top", "age", "ceiling", "floor", "horizon", "latency", "least", "most", "period", "stable",
        "value",
    )  # fmt: skip

    def __init__(self, start: float, least: float, most: float) -> None:
        self.least = least
        self.most = most
        self.value = min(max(start, least), most)
        # None: it was never refused.
        self.ceiling: float | None = None
        self.floor = self.value
        self.age = 0.0
        self.period = SHORTEST
        self.stable = 0
        self.latency: float | None = None
        # The times of the last call, of the last answer and of the last step down.
        self._sent: int | None = None
        self._answered: int | None = None
        self._stepped: int | None = None
        # The rate at which it was refused last; None: it is known to have been too high.
        self._top: float | None = None
        # Answers since the last step down; of many, old ones count less.
        self._accepted = 0.0
        self._refused = 0.0
        # Since when nothing is accepted at all; calls accepted lately, and in how many seconds.
        self._blocked: int | None = None
        self._lately = 0.0
        self._span = 0.0
        self.horizon = HORIZON
        # Between two calls of late, in seconds: as it was, and as the rate allowed it.
        self._gap = 0.0
        self._gap_allowed = 0.0

    # -- what happens ------------------------------------------------------------------------------------

    def sent(self, now: int) -> None:
        """A call is sent."""
        before, self._sent = self._sent, now
        if before is not None and now >= before:
            allowed = 1.0 / self.value
            gap = min((now - before) / SECOND, LONGEST_GAP * allowed)
            self._gap += (gap - self._gap) / RECENT
            self._gap_allowed += (allowed - self._gap_allowed) / RECENT

    def ended(self, took: int) -> None:
        """A call took so many ns."""
        seconds = min(max(took, 0) / SECOND, LONGEST_LATENCY)
        self.latency = seconds if self.latency is None else self.latency + (seconds - self.latency) / RECENT

    def accepted(self, now: int) -> None:
        """The remote has served a call."""
        elapsed = self._elapsed(now)
        self._lately += 1.0
        if self._blocked is not None:
            self._unblock(now)
        if not self._in_grace(now):
            self._note(1.0, 0.0)
        if elapsed > 0.0 and self.used >= USED:
            self._climb(elapsed)

    def refused(self, now: int) -> None:
        """The remote has refused a call, for its rate."""
        self._elapsed(now)
        if not self._in_grace(now):
            self._note(0.0, 1.0)
            self._step_down(now)

    def bounded(self, least: float, most: float) -> None:
        """Keep other bounds from now on."""
        self.least, self.most = least, most
        self._set(self.value)

    def copy(self) -> AdaptiveRate:
        """The same state, to try something out on."""
        twin = AdaptiveRate.__new__(AdaptiveRate)
        for name in AdaptiveRate.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    @property
    def used(self) -> float:
        """The part of the rate that is used, from 0 to 1."""
        return 1.0 if self._gap <= self._gap_allowed else self._gap_allowed / self._gap

    # -- the curve ---------------------------------------------------------------------------------------

    def _climb(self, elapsed: float) -> None:
        if self.ceiling is None:
            doublings = elapsed / max(DOUBLING, 4 * (self.latency or 0.0))
            self._set(self.value * 2 ** min(doublings, MOST_DOUBLINGS))
            return
        self.age += elapsed
        part = self.age / self.period - 1.0
        if part <= 0.0:
            self._set(self.ceiling + (self.ceiling - self.floor) * part**3)
            return
        curve = self.ceiling * (1.0 + RISE * part**3)
        known = min(max(self.value, GROWTH * self._on_the_whole()), self.most)
        self._set(min(curve, known))
        if curve > known:
            # The curve ends here, at the bound or at what is known, or its age would have no bound.
            self.age -= elapsed
        elif self.value > self.ceiling * (1.0 + MARGIN) and self.period > self._shortest():
            # Well above, and not refused: the limit is another one. The point stays, and the curve is steeper.
            self.stable = 0
            self.period = self._shortest()
            self.age = self.period * (1.0 + part)

    def _step_down(self, now: int) -> None:
        known, whole = self.ceiling, self._on_the_whole()
        share = (self._accepted + PRIOR) / (self._accepted + self._refused + PRIOR)
        served = self.value * self.used * share
        climbing = known is not None and self.age < self.period
        self._look_back(now, whole, climbing=climbing)
        if known is not None and self._accepted == 0.0:
            if self._blocked is None:
                # Later on, too little is accepted on the whole to tell anything.
                self._blocked = now
                self._keep(min(known, max(whole, served)))
            self.stable = 0
            self._set(self.value / 2)
        else:
            if known is None:
                self._keep(served)
            elif climbing:
                # On the way up, what is served just now may be less than what is served on the whole.
                overshot = self._top is None
                self.stable = 0 if served < known * (1.0 - NEAR) else self.stable
                self._keep(min(known, max(whole if overshot else math.sqrt(whole * served), served)))
            else:
                served = min(served, (1.0 + NEAR) * whole)
                self.stable = self.stable + 1 if abs(served - known) <= NEAR * known else 0
                self._keep(served)
            self._set(served * (1.0 - MARGIN))
        self._stepped = now
        self._begin_climb()

    def _look_back(self, now: int, whole: float, *, climbing: bool) -> None:
        """Whether the rate of the last refusal was far too high, so that the remote counts over a longer time."""
        soon = self._stepped is not None and now - self._stepped < self.horizon * SECOND
        if not (climbing and soon):
            if self._top is not None:
                self.horizon = max(HORIZON, self.horizon * SHRINK)
            self._top = self.value
        elif self._top is not None and whole * OVERSHOT < self._top:
            self.horizon = max(self.horizon, min(self.horizon * STRETCH, LONGEST_STRETCH))
            self._top = None

    def _keep(self, ceiling: float) -> None:
        self.ceiling = min(max(ceiling, self.least), self.most)

    def _unblock(self, now: int) -> None:
        """Calls are accepted again."""
        blocked = (now - (now if self._blocked is None else self._blocked)) / SECOND
        self.horizon = min(LONGEST_HORIZON, max(self.horizon, 2.0 * blocked))
        self._blocked = None
        self._begin_climb()

    def _on_the_whole(self) -> float:
        """Calls accepted per second, over the horizon."""
        return self._lately / max(self._span, 1.0)

    def _begin_climb(self) -> None:
        self.floor = self.value
        self.age = 0.0
        shortest = self._shortest()
        self.period = min(shortest * 2.0 ** min(self.stable, 30), max(LONGEST, PATIENCE * shortest))
        self._accepted = self._refused = 0.0

    def _shortest(self) -> float:
        calls = min(CALLS / max(self.value, self.ceiling or 0.0), LONGEST_FOR_CALLS)
        return max(SHORTEST, SLOWNESS * self.horizon, calls, 8 * (self.latency or 0.0))

    def _set(self, value: float) -> None:
        self.value = min(max(value, self.least), self.most)

    # -- what is measured --------------------------------------------------------------------------------

    def _in_grace(self, now: int) -> bool:
        """Whether an answer that comes now was asked for before the last step down."""
        if self._stepped is None:
            return False
        latency = UNKNOWN_LATENCY if self.latency is None else self.latency
        return now - self._stepped < max(1.25 * latency, LEAST_GRACE) * SECOND

    def _elapsed(self, now: int) -> float:
        """Seconds since the last answer; a long silence counts as a short one."""
        before, self._answered = self._answered, now if self._answered is None else max(now, self._answered)
        if before is None:
            return 0.0
        passed = min(max(now - before, 0) / SECOND, max(MOST_IDLE, 4.0 / self.value))
        kept = math.exp(-passed / self.horizon)
        self._lately *= kept
        self._span = self._span * kept + passed
        return passed

    def _note(self, accepted: float, refused: float) -> None:
        self._accepted += accepted
        self._refused += refused
        if self._accepted + self._refused > REMEMBERED:
            self._accepted /= 2
            self._refused /= 2
