"""Whether a limit was kept: looked at from outside, over all clients together.

The audit shares no code with what it checks. A window is counted with two pointers over the sorted times: the event
that comes n later must be a window later. A bucket is filled with integers: each event adds what it costs, time
takes off, and what stands in it must never exceed the burst. That is the largest excess over all intervals that end
here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise

from headway.core.limits import Bucket, Concurrency, FixedWindow, Limit, Window


def above(limit: Limit, times: Sequence[int], *, slack_ns: int = 0) -> int:
    """How many events were above the limit, by their times in nanoseconds, in order.

    >>> above(Window(2, per=1), [0, 5, 10**9]), above(Window(2, per=1), [0, 5, 10**9 - 1])
    (0, 1)
    >>> above(Bucket("2/s", burst=1), [0, 500_000_000]), above(Bucket("2/s", burst=1), [0, 499_999_990])
    (0, 1)
    """
    match limit:
        case Window():
            n = limit.count
            if n == 0:
                return len(times)
            return sum(
                later - sooner < limit.per_ns - slack_ns
                for sooner, later in zip(times, times[n:], strict=False)
            )
        case Bucket():
            return _above_bucket(limit, times, slack_ns)
        case FixedWindow():
            seen: dict[int, int] = {}
            for at in times:
                start = limit.window_of(at)[0]
                seen[start] = seen.get(start, 0) + 1
            return sum(max(0, count - limit.count) for count in seen.values())
        case _:
            raise TypeError(f"no audit for {limit!r}")


def _above_bucket(limit: Bucket, times: Sequence[int], slack_ns: int) -> int:
    found, debt, before = 0, 0, times[0] if times else 0
    # A grant on the first whole nanosecond after its time is on time.
    room = limit.capacity * limit.per_ns + limit.count * (1 + slack_ns)
    for at in times:
        debt = max(0, debt - (at - before) * limit.count) + limit.per_ns
        before = at
        if debt > room:
            found += 1
            debt = room
    return found


def above_slots(limit: Concurrency, spans: Sequence[tuple[int, int]]) -> int:
    """The largest number at the same time that is above the limit; a slot that ends frees before another begins.

    >>> above_slots(Concurrency(1), [(0, 5), (5, 9)]), above_slots(Concurrency(1), [(0, 5), (4, 9)])
    (0, 1)
    """
    return max(0, _at_once(spans) - limit.capacity)


def most(limit: Limit, times: Sequence[int], hold_ns: int = 0) -> int:
    """The largest number of events that the limit counts together: in a window, or slots of `hold_ns` at one time.

    Of a bucket it is the largest number beyond what its rate earns, over all intervals, which its burst bounds.

    >>> times = [0, 400_000_000, 999_999_999, 10**9]
    >>> most(Window(2, per=1), times), most(FixedWindow(2, per=1), times), most(Concurrency(2), times, 500_000_000)
    (3, 3, 2)
    >>> most(Bucket("2/s", burst=1), [0, 500_000_000]), most(Bucket("2/s", burst=1), [0, 499_999_990])
    (1, 2)
    """
    match limit:
        case Window():
            return _at_once([(at, at + limit.per_ns) for at in times])
        case Bucket():
            debt = largest = 0
            for before, at in pairwise((times[0] if times else 0, *times)):
                debt = max(0, debt - (at - before) * limit.count) + limit.per_ns
                largest = max(largest, debt)
            # A grant on the first whole nanosecond after its time is on time, as in `above`.
            return -(-max(0, largest - limit.count) // limit.per_ns)
        case FixedWindow():
            return max(Counter(limit.window_of(at)[0] for at in times).values(), default=0)
        case Concurrency():
            return _at_once([(at, at + hold_ns) for at in times])
        case _:
            raise TypeError(f"no audit for {limit!r}")


def _at_once(spans: Sequence[tuple[int, int]]) -> int:
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    return max(accumulate(step for _, step in edges), default=0)
