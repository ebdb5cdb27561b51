"""How many calls at once: found from latency, within its bounds, whatever happens."""

import heapq
import math
from random import Random

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from headway.core.adaptive_concurrency import AdaptiveCount

MS = 1_000_000


def serve(count, calls, servers, service=50 * MS, now=0, spread=0.0):
    """Keep as many calls in flight as are allowed; a backend serves so many at once, the others wait in its queue."""
    random = Random(1)
    free = [now] * servers
    ends: list[tuple[int, int]] = []
    highest = 0
    for _ in range(calls):
        while count.in_flight < count.allowed:
            count.began()
            start = max(now, heapq.heappop(free))
            took = round(service * random.lognormvariate(0.0, spread))
            heapq.heappush(free, start + took)
            heapq.heappush(ends, (start + took, now))
        end, begun = heapq.heappop(ends)
        now = max(now, end)
        count.ended(begun, now)
        highest = max(highest, count.allowed)
    while ends:
        end, begun = heapq.heappop(ends)
        count.ended(begun, max(now, end))
    return now, highest


def test_the_number_comes_to_rest_just_above_what_the_backend_serves_at_once():
    for servers in (5, 20, 80):
        count = AdaptiveCount(4, 1, 1000)
        now, _ = serve(count, 3000, servers)
        _, highest = serve(count, 3000, servers, now=now)
        assert servers * 0.9 <= count.value <= servers + 20
        assert highest <= servers + 25


def test_a_backend_that_loses_machines_is_sent_less():
    count = AdaptiveCount(4, 1, 1000)
    now, _ = serve(count, 3000, 40)
    before = count.value
    serve(count, 5000, 10, now=now)
    assert count.value < before * 0.75
    assert count.value <= 10 + 20


def test_a_loss_cuts_the_number_once_in_a_look():
    count = AdaptiveCount(20, 1, 100)
    for _ in range(20):
        count.began()
    for call in range(20):
        (count.lost if call < 5 else count.ended)(0, 100 * MS)
    assert count.value == 18.0


def test_the_number_does_not_rise_while_it_is_not_used():
    count = AdaptiveCount(50, 1, 1000)
    for call in range(1000):
        count.began()
        count.ended(call * MS, (call + 1) * MS)
    assert count.value == 50.0


def test_a_backend_that_is_slower_for_good_is_not_held_to_what_it_could_once():
    count = AdaptiveCount(4, 1, 1000)
    now, _ = serve(count, 3000, 20, 10 * MS)
    now, _ = serve(count, 20000, 20, 100 * MS, now=now)
    assert count.value >= 15


def test_calls_that_differ_are_not_taken_for_a_queue():
    """The mean of such calls is three times the shortest of them, without any queue."""
    for servers in (6, 20, 60):
        count = AdaptiveCount(10, 1, 200)
        serve(count, 20_000, servers, spread=0.6)
        assert 0.9 * servers <= count.value <= servers + 20


EVENTS = st.lists(
    st.tuples(st.sampled_from(["began", "ended", "lost", "dropped"]), st.integers(-(10**9), 10**12)),
    max_size=300,
)


@settings(max_examples=200)
@given(EVENTS, st.integers(1, 100), st.integers(1, 100), st.integers(1, 100))
def test_no_history_leaves_the_bounds_or_breaks_a_number(events, start, one, other):
    least, most = min(one, other), max(one, other)
    count = AdaptiveCount(start, least, most)
    now = 0
    for what, step in events:
        now = max(0, now + step)
        if what in ("ended", "lost"):
            getattr(count, what)(max(0, now - abs(step)), now)
        else:
            getattr(count, what)()
        assert least <= count.value <= most
        assert least <= count.allowed <= most
        assert count.in_flight >= 0
        assert count.best is None or (math.isfinite(count.best) and count.best > 0)


# A failure is not shrunk: an example serves 8000 calls.
@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate], deadline=None)
@given(EVENTS)
@example([("ended", 629_222_349), ("ended", 10**9)] * 8)  # as if a call had once taken a second
def test_no_history_keeps_it_from_finding_the_number(events):
    count = AdaptiveCount(10, 1, 200)
    now = 0
    for what, step in events:
        now = max(0, now + min(step, 10**9))
        if what in ("ended", "lost"):
            getattr(count, what)(max(0, now - min(abs(step), 10**9)), now)
        elif what == "dropped":
            count.dropped()
    count.in_flight = 0
    serve(count, 8000, 20, now=now)
    assert 15 <= count.value <= 45


@given(st.lists(st.integers(1, 10**9), min_size=8, max_size=8), st.integers(0, 7), st.integers(1, 10**9))
def test_a_slower_answer_never_leads_to_a_higher_number(latencies, slower, more):
    """Of two looks that differ in one latency, above the shortest, the one with the longer latency allows no more."""

    def after(values):
        count = AdaptiveCount(8, 1, 100)
        count.best = 1.0
        for _ in values:
            count.began()
        for value in values:
            count.ended(0, value)
        return count.value

    changed = list(latencies)
    changed[slower] += more
    assert after(changed) <= after(latencies) or min(changed) > min(latencies)
