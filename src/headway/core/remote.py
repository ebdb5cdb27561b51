"""How long to wait so that *their* clock agrees.

The promise is "never more than n events in any window of w seconds, as the remote measures it". The naive
way is to remember when each of the last n events happened and to send the next one w after the oldest. It
fails, because we do not see what the remote sees. Each thing between our clock and theirs moves the answer:

- **Which time counts.** We know when we sent an event and when we heard back. The remote noted it somewhere
  between. Counting from the sending is unsafe, since the event may have been noted long after; so we count
  from the acknowledgement `ts`, when it certainly had been noted.
- **Their clock ticks** (`resolution`, rr). It shows the same reading for a whole tick. Two events that are
  almost w + rr apart can carry readings only w apart, so rr is added to the window.
- **Their clock runs wrong** (`drift_ppm`, re). If it runs slow, what it reads as w + rr takes up to
  (w + rr) / (1 - re) of true time. A division, not a factor (1 + re): the error is relative to true time,
  not to what they read.
- **The way takes time** (`out_latency`, `back_latency`). These are *floors*: no event arrives earlier than
  `out_latency` after it was sent, and it was noted at least `back_latency` before we heard. Both are time
  that passes anyway, so both shorten the wait. Left at 0 they are safe; a floor that is not really one is
  not.
- **Our clock runs wrong too** (le): to be sure of a true interval, measure one longer by (1 + le). If the
  interval is negative (the floors exceed the window), the safe side is the other one, (1 - le); the
  one-case formula would there be early.
- **Our clock ticks** (lr): a difference of two readings can exceed the truth by nearly one tick. Add lr.

Together, in exact fractions and rounded up to a nanosecond at the very end:

    true = (w + rr) / (1 - re) - out_latency - back_latency
    gap  = true * (1 + le) + lr      if true >= 0
    gap  = true * (1 - le) + lr      if true <  0

For a window of 1 s, a remote that ticks every 16 ms, 250 ppm on both sides and a local tick of 1 ns: 1 s
becomes 1.016 s by their ticks, 1.016254064 s by their drift and 1.016508129 s by our drift and tick. The
last half millisecond looks like pedantry; for a window of a day it is 43 s.

>>> gap_ns(1_000_000_000, Remote(), 1, 250)
1016508129

What is never acknowledged would block its permit for ever. `max_transit` bounds it: that long after the
grant, the remote has noted the event or never will. `transit_ns` is that bound on our clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from headway.core.durations import MAX, Duration, seconds_source, span_of
from headway.errors import InvalidArgument

__all__ = ["Remote", "gap_ns", "transit_ns"]

_MILLION = 10**6


def _ratio(argument: str, ppm: object) -> Fraction:
    """Parts per million as an exact fraction, by way of the decimal that was written."""
    if isinstance(ppm, int | float) and not isinstance(ppm, bool) and math.isfinite(ppm):
        exact = Fraction(float.__repr__(ppm)) if isinstance(ppm, float) else Fraction(ppm)
        if 0 <= exact < _MILLION:
            return exact / _MILLION
    raise InvalidArgument(argument, ppm, "parts per million, from 0 to below 1_000_000")


def _span(argument: str, value: object) -> int:
    ns = span_of(value)
    if ns is None or not 0 <= ns <= MAX:
        kinds = 'seconds, a timedelta or a string such as "250ms"'
        raise InvalidArgument(argument, value, f"{kinds}, from 0 up to 2**62 ns (146 years)")
    return ns


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Remote:
    """What is known about the system that measures us: its clock, and the way there and back.

    >>> Remote(resolution=0.001, max_transit=30)
    Remote(resolution=0.001, max_transit=30)
    >>> Remote().drift_ppm, Remote().max_transit_ns
    (250, 10000000000)
    """

    resolution_ns: int
    drift_ppm: float
    out_latency_ns: int
    back_latency_ns: int
    max_transit_ns: int

    def __init__(
        self,
        *,
        resolution: Duration = 0.016,
        drift_ppm: float = 250,
        out_latency: Duration = 0,
        back_latency: Duration = 0,
        max_transit: Duration = 10,
    ) -> None:
        _ratio("drift_ppm", drift_ppm)
        object.__setattr__(self, "resolution_ns", _span("resolution", resolution))
        object.__setattr__(self, "drift_ppm", drift_ppm)
        object.__setattr__(self, "out_latency_ns", _span("out_latency", out_latency))
        object.__setattr__(self, "back_latency_ns", _span("back_latency", back_latency))
        object.__setattr__(self, "max_transit_ns", _span("max_transit", max_transit))

    @classmethod
    def milliseconds(cls, *, max_transit: Duration = 10) -> Remote:
        """A server that stamps in milliseconds, its clock steered by ntpd.

        500 ppm is the fastest that ntpd slews a clock (0.5 ms/s), 100 ppm the error of a poor crystal.

        >>> Remote.milliseconds()
        Remote(resolution=0.001, drift_ppm=600)
        """
        return cls(resolution=0.001, drift_ppm=600, max_transit=max_transit)

    @classmethod
    def whole_seconds(cls, *, max_transit: Duration = 10) -> Remote:
        """A server that stamps in whole seconds, as Unix time and HTTP's `Date` do; steered by ntpd.

        >>> Remote.whole_seconds(max_transit=30)
        Remote(resolution=1, drift_ppm=600, max_transit=30)
        """
        return cls(resolution=1, drift_ppm=600, max_transit=max_transit)

    def __repr__(self) -> str:
        sources = {
            "resolution": seconds_source(self.resolution_ns),
            "drift_ppm": repr(self.drift_ppm),
            "out_latency": seconds_source(self.out_latency_ns),
            "back_latency": seconds_source(self.back_latency_ns),
            "max_transit": seconds_source(self.max_transit_ns),
        }
        changed = (f"{name}={source}" for name, source in sources.items() if source != _DEFAULTS[name])
        return f"Remote({', '.join(changed)})"


_DEFAULTS = {
    "resolution": "0.016",
    "drift_ppm": "250",
    "out_latency": "0",
    "back_latency": "0",
    "max_transit": "10",
}


def gap_ns(per_ns: int, remote: Remote, local_resolution_ns: int, local_drift_ppm: float) -> int:
    """How long after its completion, on the local clock, a permit is usable again.

    Negative when the latency floors exceed the window: then the permit could have been used again even before
    its completion was known, so it is usable the moment it completes. The number is returned as it is.

    >>> gap_ns(10**9, Remote(resolution=0, drift_ppm=0), 0, 0)
    1000000000
    >>> gap_ns(10**9, Remote(resolution=0, drift_ppm=0, out_latency=2), 0, 250)
    -999750000
    """
    e_local = _ratio("local_drift_ppm", local_drift_ppm)
    e_remote = _ratio("drift_ppm", remote.drift_ppm)
    true = (per_ns + remote.resolution_ns) / (1 - e_remote) - remote.out_latency_ns - remote.back_latency_ns
    stretch = 1 + e_local if true >= 0 else 1 - e_local
    return math.ceil(true * stretch + local_resolution_ns)


def transit_ns(remote: Remote, local_resolution_ns: int, local_drift_ppm: float, lease_ns: int = 0) -> int:
    """How long after its grant, on the local clock, an unfinished permit counts as completed.

    `lease_ns` is how long after its grant the permit may still be dispatched; 0 where that is done at once.

    >>> transit_ns(Remote(max_transit=10, back_latency=0.5), 1, 250)
    10502625001
    >>> transit_ns(Remote(max_transit=10, back_latency=0.5), 1, 250, 2 * 10**9)
    12503125001
    """
    stretch = 1 + _ratio("local_drift_ppm", local_drift_ppm)
    return math.ceil(
        (lease_ns + remote.max_transit_ns + remote.back_latency_ns) * stretch + local_resolution_ns
    )
