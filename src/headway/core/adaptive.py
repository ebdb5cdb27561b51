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
proof that nothing is accepted.

*Answers that are on their way* were asked for at the old rate. A client with 50 calls in flight may hear 50 refusals of
one event, and must not step down 50 times. So a step is followed by a time a little longer than a call takes
(`latency`, measured by the ends of permits) in which refusals begin no new step. They say how deep this one has to be:
the rate goes to the *old* rate times the accepted share of these answers. If one of 50 was refused, that changes
nothing; if all were, the next calls are not wasted until the time is over.

*A full window* accepts nothing for a while. If nothing was accepted between two steps, the rate is halved, again and
again, until a call is accepted. At that moment the remote's window holds as many calls as it may: what was accepted
over its length, in which there was the block. The client does not know the length, only that of the block, and takes
twice the block for it (or its horizon, if that is longer). So a window that was halved, which is full for half of its
length, leads to half of the rate. To come back with the old rate would fill the window again: a window repeats what was
sent into it. A block longer than `LONGEST_STRETCH` is an outage, and says nothing of the limit.

*Probing is rarer the more stable the remote is.* A refusal near the last ceiling says that the limit is where it was,
and doubles the period, up to `LONGEST`. A refusal elsewhere says that the limit has changed, and the period is the
shortest again. The shortest is long enough for `CALLS` calls, so that a slow client among many is not refused more
often, call for call, than a fast one. The part of all calls that is refused in the long run (`refusals`) bounds the
period: a client that is refused rarely can afford to try more often, and finds a higher limit sooner.

*A refusal on the way up* may be of chance, as calls do not arrive as evenly as they are sent, or because other clients
have taken what was free. After many accepted calls (`LONE`) it lowers the rate and not the ceiling: otherwise
each refusal of chance would lower the ceiling, and no climb would ever pass it.

*A climb that is not refused* `WELL_ABOVE` the ceiling says that the limit is another one. The rate doubles from there,
as it does before the first refusal, each `DOUBLING` or in the horizon if that is longer.

*A remote with a long window* accepts far more than its limit for a while, and then nothing: it is the sum over
its window that counts, and a rate of three times the limit is accepted until the window is full. A client that takes
this for the limit swings for ever. Three rules keep it from that. The rate never exceeds `GROWTH` times what is
accepted on the whole. A ceiling is not above what is accepted on the whole, by more than `NEAR`. And if a refusal
shows that the rate before it had overshot, the horizon and with it the shortest period become longer: the client
cannot see the remote's window, but it notices that it is longer than its own horizon. The horizon is shorter again
with each refusal that shows no overshooting, and with each time that the rate has outgrown what was known.

*The rate climbs only if it is used.* `age` is the time during which calls were sent at nearly the rate. A client
that sends less than it might learns nothing about what it might send, and its rate does not drift upwards overnight. A
refusal of a client that sends less than its rate brings the rate down to what it sends.

Before the first refusal there is no ceiling, and the rate doubles each `DOUBLING`.

Worked example, a hidden window of 100 in a second, answers after 50 ms, start 10/s: the rate doubles until it is
refused at 121/s, four times in one round trip; that is one step, to 85/s, with a ceiling of 91/s. It climbs for 2 s,
passes the ceiling, doubles, and is refused at 112/s: 91/s, with a ceiling of 97/s. It is refused some times from 102/s
to 99/s, on the way up to a ceiling that is a little too high. From then on it is refused near the ceiling: the period
is 4 s, then 8, then 10, and the rate is between 95/s and 100/s. 98 % of the limit are used, 1 call of 1200 is refused.

Numbers are floats, as a rate that is found by trial has no exact value. Time is an integer of nanoseconds, and comes as
an argument. The memory is some thirty numbers, whatever happens.
"""

from __future__ import annotations

import math
from typing import Final

SECOND: Final = 10**9

MARGIN: Final = 0.06
SLIGHT_MARGIN: Final = 0.04
"""The part of what was accepted that the rate stays below after a refusal; and after one among `LONE` calls."""
LONE: Final = 100
"""A refusal after so many accepted calls may be of chance: it does not lower the ceiling on the way up."""
OFTEN: Final = 80
"""Refusals on the way up that have fewer accepted calls between them make the next climb longer."""
NEAR: Final = 0.15
"""A refusal this near to the last ceiling, as a part of it, says that the limit is where it was."""
AT_CEILING: Final = 0.02
"""A refusal on the way up that is this near to the ceiling is one by the ceiling."""
RISE: Final = 0.3
"""How steep the curve is above the ceiling: so much more of it after a second period."""
WELL_ABOVE: Final = 0.05
"""A rate that is this part above the ceiling and is not refused says that the limit is another one."""
GROWTH: Final = 1.6
"""The rate is at most so many times what is accepted on the whole, once a refusal has come."""
PRIOR: Final = 6
"""Answers that count as accepted besides those that were."""
REMEMBERED: Final = 400
"""Answers since the last step down that count; when there are more, all of them count half."""
CALLS: Final = 60
LONGEST_FOR_CALLS: Final = 25.0
"""A climb takes at least so many calls, or so many seconds."""
SHORTEST: Final = 2.0
LONGEST: Final = 10.0
"""Seconds that a climb takes at least, and at most unless the patience times its shortest is more."""
LEAST_PATIENCE: Final = 1.3
MOST_PATIENCE: Final = 3.0
FEW_REFUSALS: Final = 0.006
MANY_REFUSALS: Final = 0.012
"""The patience, and the parts of the calls that are refused at which it is the least and the most."""
TOO_MANY_REFUSALS: Final = 0.02
"""From this part on a climb is longer, even if the remote is not stable."""
LONG_RUN: Final = 300
"""Calls over which it is counted which part of them is refused."""
DOUBLING: Final = 2.0
"""Seconds in which the rate doubles while no refusal has come, if calls are short."""
CALLS_TO_DOUBLE: Final = 15
"""Calls in which it doubles at least, when it has left a ceiling below."""
OUTGROWN: Final = 2.5
"""Each time that the rate has become so many times what was known, and is not refused, the horizon is halved."""
MOST_DOUBLINGS: Final = 2.0
"""How often it doubles at one answer, at most: there may be minutes between two of them."""
HORIZON: Final = 3.0
LONGEST_STRETCH: Final = 12.0
LONGEST_HORIZON: Final = 40.0
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
BLOCKED_FOR: Final = 3
"""Halvings, with nothing accepted between them, that show that the remote's window is full."""
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
        "_accepted", "_answered", "_blocked", "_calls", "_gap", "_gap_allowed", "_halvings", "_late_accepted",
        "_late_refused", "_lately", "_old_rate", "_refused", "_sent", "_span", "_stepped", "_top", "age",
        "ceiling", "floor", "free", "horizon", "latency", "least", "most", "period", "refusals", "stable", "value",
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
        # Whether the ceiling is known to be too low, so that the rate doubles.
        self.free = False
        # The part of the calls that is refused, in the long run.
        self.refusals = 0.0
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
        # Calls accepted since the last step down, those sent before it among them.
        self._calls = 0.0
        # What was sent before the last step down, and the answers to it that came after.
        self._old_rate = 0.0
        self._late_accepted = 0.0
        self._late_refused = 0.0
        # Since when nothing is accepted at all, and how often the rate was halved since; calls accepted lately, and in
        # how many seconds.
        self._blocked: int | None = None
        self._halvings = 0
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
        self.refusals -= self.refusals / LONG_RUN
        self._calls += 1.0
        self._lately += 1.0
        if self._blocked is not None:
            self._unblock(now)
        if self._in_grace(now):
            self._late_accepted += 1.0
        else:
            self._note(1.0, 0.0)
        if elapsed > 0.0 and self.used >= USED:
            self._climb(elapsed)

    def refused(self, now: int) -> None:
        """The remote has refused a call, for its rate."""
        self._elapsed(now)
        if self._blocked is None:
            # A remote that accepts nothing says nothing of how often it should be tried.
            self.refusals += (1.0 - self.refusals) / LONG_RUN
        if self._in_grace(now):
            self._late_refused += 1.0
            self._deepen_step()
        else:
            self._note(0.0, 1.0)
            self._old_rate = self.value * self.used
            self._late_accepted, self._late_refused = 0.0, 1.0
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
        if self.ceiling is None or self.free:
            self._double(elapsed)
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
        elif self.value > self.ceiling * (1.0 + WELL_ABOVE):
            # Well above, and not refused: the limit is another one.
            self.stable = 0
            self.free = True
            self.floor = self.value

    def _double(self, elapsed: float) -> None:
        seconds = max(DOUBLING, 4 * (self.latency or 0.0))
        bound = self.most
        if self.ceiling is not None:
            if self.value >= OUTGROWN * self.floor:
                # Far more than was known is accepted: what was known of the remote's window is old, too.
                self.floor = self.value
                self.horizon = max(HORIZON, self.horizon / 2)
            # A remote with a long window shows late that the rate is too high.
            seconds = max(seconds, CALLS_TO_DOUBLE / self.value, self.horizon)
            bound = max(self.value, GROWTH * self._on_the_whole())
        self._set(min(self.value * 2 ** min(elapsed / seconds, MOST_DOUBLINGS), bound))

    def _step_down(self, now: int) -> None:
        known, whole = self.ceiling, self._on_the_whole()
        share = (self._accepted + PRIOR) / (self._accepted + self._refused + PRIOR)
        served = self.value * self.used * share
        climbing = known is not None and not self.free and self.age < self.period
        echo = self._look_back(now, whole, climbing=climbing)
        self.free = False
        if known is not None and self._accepted == 0.0:
            if self._blocked is None:
                # Later on, too little is accepted on the whole to tell anything.
                self._blocked = now
                self._keep(min(known, max(whole, served)))
            self.stable = 0
            self._halvings += 1
            self._set(self.value / 2)
        else:
            lone = self._calls > LONE
            if known is None:
                self._keep(served)
            elif climbing:
                self._judge_on_the_way(known, whole, served, lone=lone, echo=echo)
            else:
                served = min(served, (1.0 + NEAR) * whole)
                self.stable = self.stable + 1 if abs(served - known) <= NEAR * known else 0
                self._keep(served)
            self._set(served * (1.0 - (SLIGHT_MARGIN if lone else MARGIN)))
        self._stepped = now
        self._calls = 0.0
        self._begin_climb()

    def _judge_on_the_way(self, known: float, whole: float, served: float, *, lone: bool, echo: bool) -> None:
        """What a refusal below the ceiling says of it."""
        if served >= known * (1.0 - AT_CEILING):
            # It is the ceiling that refuses, and it was a little too high.
            self.stable += 0 if echo else 1
            self._keep(min(known, served))
            return
        if served < known * (1.0 - NEAR):
            self.stable = 0
        elif lone:
            self.stable = max(0, self.stable - 1)
        elif self._calls < OFTEN and not echo:
            self.stable += 1
        if not lone:
            # What is served just now may be less than what is served on the whole.
            overshot = self._top is None
            self._keep(min(known, max(whole if overshot else math.sqrt(whole * served), served)))

    def _deepen_step(self) -> None:
        """A call that was sent before the last step down is refused, too: the more of them, the lower is the limit."""
        late = self._late_accepted + PRIOR
        served = self._old_rate * late / (late + self._late_refused)
        if self.ceiling is None or served * (1.0 - MARGIN) >= self.value:
            return
        if self._late_accepted > 0.0:
            # If none was accepted, they say that a window is full, and not how large it is.
            self._keep(min(self.ceiling, max(served, self._on_the_whole())))
        self._set(served * (1.0 - MARGIN))
        self.floor = self.value

    def _look_back(self, now: int, whole: float, *, climbing: bool) -> bool:
        """Whether this refusal is an echo of the last one; if that was far too high, a longer time counts from now."""
        soon = self._stepped is not None and now - self._stepped < self.horizon * SECOND
        if not (climbing and soon):
            if self._top is not None:
                self.horizon = max(HORIZON, self.horizon * SHRINK)
            self._top = self.value
        elif self._top is not None and whole * OVERSHOT < self._top:
            self.horizon = max(self.horizon, min(self.horizon * STRETCH, LONGEST_STRETCH))
            self._top = None
        return climbing and soon

    def _keep(self, ceiling: float) -> None:
        self.ceiling = min(max(ceiling, self.least), self.most)

    def _unblock(self, now: int) -> None:
        """Calls are accepted again."""
        blocked = (now - (now if self._blocked is None else self._blocked)) / SECOND
        self.horizon = min(LONGEST_HORIZON, max(self.horizon, 2.0 * blocked))
        if self.ceiling is not None and blocked <= LONGEST_STRETCH:
            self._keep(self.ceiling * (1.0 - blocked / max(self.horizon, 2.0 * blocked)))
            if self._halvings >= BLOCKED_FOR:
                self._set(max(self.value, self.ceiling * (1.0 - MARGIN)))
        self._blocked = None
        self._halvings = 0
        self._begin_climb()

    def _on_the_whole(self) -> float:
        """Calls accepted per second, over the horizon."""
        return self._lately / max(self._span, 1.0)

    def _begin_climb(self) -> None:
        self.floor = self.value
        self.age = 0.0
        shortest = self._shortest()
        longest = max(LONGEST, shortest, self._patience() * min(shortest, LONGEST_FOR_CALLS))
        self.period = max(
            min(shortest * 2.0 ** min(self.stable, 30), longest),
            min(shortest, LONGEST_FOR_CALLS) * min(self.refusals / TOO_MANY_REFUSALS, MOST_PATIENCE),
        )
        self._accepted = self._refused = 0.0

    def _patience(self) -> float:
        many = (self.refusals - FEW_REFUSALS) / (MANY_REFUSALS - FEW_REFUSALS)
        return LEAST_PATIENCE + (MOST_PATIENCE - LEAST_PATIENCE) * min(max(many, 0.0), 1.0)

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
