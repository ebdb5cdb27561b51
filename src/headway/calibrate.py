"""From measured round trips to a latency floor that is safe to rely on.

The gap subtracts two floors: `out_latency`, below which no call reaches the remote, and `back_latency`, below which no
answer comes back. Every millisecond there is a millisecond less to wait, and a millisecond too much breaks the promise.
It is tempting to measure some round trips, take the fastest and halve it. Three things are wrong with that:

- **The fastest so far is not the fastest possible.** A route changes, a server moves nearer, an answer comes from a
  cache. And a round trip includes what the remote did meanwhile, which may take no time at all tomorrow. So only a
  share of the fastest is kept (`keep`, a half), and a few measurements are not enough to have a fastest.
- **The two floors meet in different calls.** What has to be long enough is the way back of one call and the way out
  of a *later* one. Round trips of 100 ms say nothing if one call spends them going out and the next coming back. That
  the sum is a floor rests on each way having a floor of its own, of unknown size: distance has that, queues do not.
- **Halves are a guess.** How a round trip splits cannot be seen from here. For an answered call only the sum counts, so
  the split does not matter. For an abandoned one the way back drops out (it is added to the transit and subtracted
  from the gap) and `out_latency` alone is relied upon. So all of it is called `back_latency` and `out_latency` is 0,
  which is a floor whatever the split is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from headway.core.durations import MAX, Duration, span_of
from headway.core.remote import Remote, gap_ns
from headway.errors import InvalidArgument

__all__ = ["Calibration", "calibrate"]

ENOUGH = 20
"""Fewer round trips have no fastest worth the name."""

MOST = 0.9
"""The largest share of the fastest that may be kept; our own clock's error is far inside the rest."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the round trips allow: `remote` is ready for `Limiter(..., remote=...)`, `explain()` says why.

    >>> Calibration(20, 40_000_000, 0.5, 20_000_000, Remote(back_latency=0.02)).floor
    0.02
    """

    count: int
    fastest_ns: int
    keep: float
    floor_ns: int
    remote: Remote

    @property
    def floor(self) -> float:
        """Seconds that a call is under way at least, out and back together."""
        return self.floor_ns / 1e9

    def explain(self, per: Duration = 1) -> str:
        """The reasons, and what the floor is worth for a window of `per`."""
        per_ns = span_of(per)
        if per_ns is None or not 0 < per_ns <= MAX:
            raise InvalidArgument("per", per, "the length of a window, above 0")
        before = max(0, gap_ns(per_ns, _with_floor(self.remote, 0), 1, 250)) / 1e9
        after = max(0, gap_ns(per_ns, self.remote, 1, 250)) / 1e9
        return (
            f"{self.count} round trips, the fastest {_ms(self.fastest_ns)}.\n"
            f"Kept as a floor: {self.keep:.0%} of it, {_ms(self.floor_ns)}. A faster one may come: a shorter route, an "
            "answer from a cache.\n"
            "All of it is back_latency, out_latency is 0: the split is unknown, an answered call needs only the sum,\n"
            "and an abandoned one relies on out_latency alone.\n"
            f"A permit of a window of {per_ns / 1e9:g} s rests {after:.6g} s after an answer, "
            f"instead of {before:.6g} s.\n"
            "max_transit is not touched: no number of answers bounds how late the next call may arrive.\n"
            "Not covered: a remote that moves nearer than that. Measure again when it does."
        )


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.6g} ms"


def _with_floor(remote: Remote, floor_ns: int) -> Remote:
    changed = copy.copy(remote)
    object.__setattr__(changed, "out_latency_ns", 0)
    object.__setattr__(changed, "back_latency_ns", floor_ns)
    return changed


def calibrate(
    round_trips: Iterable[Duration], *, keep: float = 0.5, remote: Remote | None = None
) -> Calibration:
    """Turn measured round trips, in seconds, into a `Remote` with a latency floor that is safe to rely on.

    Measure what has no work in it: how long a TCP connection takes to open, or a ping, rather than a call. `keep` is
    the share of the fastest that is relied upon, at most 0.9; the rest is for a faster one. `remote` says what else
    is known; its own latency floors are replaced.

    >>> measured = [0.052, 0.048, 0.061, 0.047] * 5
    >>> calibrate(measured).remote
    Remote(back_latency=0.0235)
    >>> calibrate(measured, keep=0.8, remote=Remote.milliseconds()).remote
    Remote(resolution=0.001, drift_ppm=600, back_latency=0.0376)
    """
    share: object = keep  # whatever it was called with
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= MOST:
        raise InvalidArgument("keep", keep, f"a share from 0 to {MOST}")
    known: object = Remote() if remote is None else remote
    if not isinstance(known, Remote):
        raise InvalidArgument("remote", remote, "a Remote or None")
    measured: object = round_trips
    if not isinstance(measured, Iterable) or isinstance(measured, str | bytes):
        raise InvalidArgument("round_trips", round_trips, f"a list of {ENOUGH} or more, in seconds")
    trips: list[int] = []
    for trip in round_trips:
        ns = span_of(trip)
        if ns is None or not 0 <= ns <= MAX:
            raise InvalidArgument("round_trips", trip, "seconds or timedeltas, from 0 up")
        trips.append(ns)
    if len(trips) < ENOUGH:
        raise InvalidArgument("round_trips", len(trips), f"at least {ENOUGH} of them")
    fastest = min(trips)
    floor = int(fastest * Fraction(str(share)))  # down to a whole nanosecond
    return Calibration(len(trips), fastest, keep, floor, _with_floor(known, floor))
