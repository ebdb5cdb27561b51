"""Refunds: hits go back, and whichever hits were meant, no window ever has more than the limit."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import Limiter
from headway.service.envoy.refunds import Refunds
from headway.testing import ManualClock
from service.envoy.asking import OK, ask, descriptor, passed, remaining, service_of

SECOND = 10**9


def refund(service, hits=None, key="user=a", **fields):
    return ask(service, descriptor(key, hits_addend=hits, is_negative_hits=True), **fields)


@pytest.fixture
def clock():
    return ManualClock()


# -- through the service -------------------------------------------------------------------------------------------

KINDS = ["5/minute", "5/minute burst 5", "5/minute aligned", "5/minute; 7/hour"]


@pytest.mark.parametrize("limit", KINDS)
def test_hits_go_back(clock, limit):
    service = service_of(f'  - {{key: user, limit: "{limit}"}}', clock=clock)
    assert passed(service, "user=a", 9) == 5
    response = refund(service, 2)
    # A bucket keeps a nanosecond of each: what came after may have relied on it.
    back = 1 if "burst" in limit else 2
    assert (response.overall_code, remaining(response)) == (OK, [back])
    assert passed(service, "user=a", 9) == back
    assert service.stats.of(("d", "user")).refunded == 2


@pytest.mark.parametrize("limit", KINDS)
def test_a_part_of_a_grant_goes_back(clock, limit):
    service = service_of(f'  - {{key: user, limit: "{limit}"}}', clock=clock)
    ask(service, "user=a", hits_addend=5)
    assert remaining(refund(service, 3)) == [3]
    assert passed(service, "user=a", 9) == 3


@pytest.mark.parametrize("limit", KINDS)
def test_no_more_goes_back_than_was_taken(clock, limit):
    service = service_of(f'  - {{key: user, limit: "{limit}"}}', clock=clock)
    refund(service, 1000)
    ask(service, "user=a", hits_addend=2)
    assert remaining(refund(service, 1000)) == [5]
    assert passed(service, "user=a", 9) == 5
    clock.advance(61)
    assert remaining(refund(service, 1000))[0] <= 5


def test_a_refund_without_hits_of_its_own_gives_back_those_of_the_request(clock):
    service = service_of("  - {key: user, limit: 5/minute}", clock=clock)
    for hits in (2, 3):
        ask(service, "user=a", hits_addend=hits)
    assert remaining(refund(service)) == [1]
    assert remaining(refund(service, hits_addend=3)) == [4]


@pytest.mark.parametrize("limit", KINDS)
def test_a_grant_is_refunded_in_parts(clock, limit):
    service = service_of(f'  - {{key: user, limit: "{limit}"}}', clock=clock)
    ask(service, "user=a", hits_addend=5)
    last = 4 if "burst" in limit else 5  # of a bucket that was refunded from, a nanosecond is kept again
    assert [remaining(refund(service, 2)) for _ in range(3)] == [[2], [4], [last]]
    assert passed(service, "user=a", 9) == last


def test_a_refund_is_of_its_key_and_of_nothing_that_was_denied(clock):
    service = service_of("  - {key: user, limit: 2/minute}\n  - {key: path, limit: 1/minute}", clock=clock)
    ask(service, "path=x")
    ask(service, "user=a", "path=x")  # denied: nothing was taken, and nothing can be given back
    ask(service, "user=b", hits_addend=2)
    refund(service, 5)
    assert service.stats.of(("d", "user")).refunded == 0
    assert remaining(ask(service, descriptor("user=b", hits_addend=0))) == [0]


def test_a_refund_and_a_hit_in_one_request(clock):
    service = service_of("  - {key: user, limit: 2/minute}", clock=clock)
    ask(service, "user=a", hits_addend=2)
    back = descriptor("user=a", hits_addend=1, is_negative_hits=True)
    assert ask(service, "user=a", back).overall_code is OK
    assert ask(service, "user=a").overall_code is not OK


def test_the_place_of_a_later_hit_is_not_freed_in_error(clock):
    """The example at the top of `refunds`: A at 0 s is refunded at 55 s, B at 50 s is not."""
    service = service_of("  - {key: user, limit: 2/minute}", clock=clock)
    ask(service, "user=a")
    clock.advance(50)
    ask(service, "user=a")
    clock.advance(5)
    refund(service, 1)
    assert passed(service, "user=a", 5) == 1  # B and C
    clock.advance(5)
    assert passed(service, "user=a", 5) == 0


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(1, 3)),
            st.tuples(st.just("refund"), st.integers(0, 30)),
            st.tuples(st.just("wait"), st.integers(1, 60)),
        ),
        max_size=40,
    ),
    st.integers(1, 4),
)
def test_no_window_is_above_its_limit_whichever_hits_were_refunded(steps, most_of_key):
    """The test knows which hits a refund means, the service does not. What was not refunded is what happened."""
    clock = ManualClock()
    limiter = Limiter("4/10s", clock=clock, remote=False)
    refunds = Refunds(10 * SECOND, most_of_key=most_of_key)
    happened: list[float] = []
    now = 0.0
    for what, number in steps:
        if what == "take":
            permit = limiter.try_acquire("k", cost=number)
            if permit:
                refunds.add("k", permit, number, clock.now())
                happened += [now] * number
        elif what == "refund":
            # Any hit that still counts, by its number among them; it has not happened after all.
            counting = [at for at in happened if now - at < 10]
            if counting:
                happened.remove(counting[number % len(counting)])
                refunds.give_back("k", 1, clock.now())
        else:
            clock.advance(number / 10)
            now = round(now + number / 10, 1)
        for start in happened:
            within = [at for at in happened if start <= at < start + 10]
            assert len(within) <= 4, (steps, happened)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6), st.integers(0, 9)), max_size=30),
    st.sampled_from(KINDS),
)
def test_what_remains_is_never_above_the_limit(steps, limit):
    clock = ManualClock()
    service = service_of(f'  - {{key: user, limit: "{limit}"}}', clock=clock)
    net = 0
    for hits, back, wait in steps:
        if ask(service, "user=a", hits_addend=hits).overall_code is OK:
            net += hits
        before = service.stats.of(("d", "user")).refunded
        assert 0 <= remaining(refund(service, back))[0] <= 5
        net -= service.stats.of(("d", "user")).refunded - before
        assert net >= 0  # what was given back had been taken
        clock.advance(wait)


# -- bounds --------------------------------------------------------------------------------------------------------


class Grant:
    """Stands for a permit, and notes how it ended."""

    ended = None

    def __init__(self, ends):
        self.ends = ends

    def cancel(self):
        self.ended = "cancel"
        self.ends["cancelled"] += 1

    def _resize(self, cost):
        self.ends["left"] = cost


def test_the_oldest_are_kept_and_a_gap_uses_refunds_up():
    ends: dict[str, int] = defaultdict(int)
    refunds = Refunds(100, most_of_key=3)
    for now in range(6):
        refunds.add("k", Grant(ends), 1, now)
    assert len(refunds) == 3
    assert refunds.give_back("k", 2, 7) == 2
    refunds.add("k", Grant(ends), 1, 8)  # there is room again, behind the gap
    assert refunds.give_back("k", 1, 9) == 1
    assert refunds.give_back("k", 3, 10) == 0  # the three of the gap
    assert refunds.give_back("k", 1, 11) == 1
    assert (ends["cancelled"], len(refunds)) == (4, 0)


def test_a_gap_is_forgotten_when_its_hits_do_not_count_any_more():
    ends: dict[str, int] = defaultdict(int)
    refunds = Refunds(100, most_of_key=2)
    refunds.add("k", Grant(ends), 1, 0)
    refunds.add("k", Grant(ends), 1, 1)
    refunds.add("k", Grant(ends), 5, 10)
    refunds.add("k", Grant(ends), 4, 105)  # the first two are too old, the gap is not
    assert refunds.give_back("k", 1, 106) == 0
    assert refunds.give_back("k", 3, 111) == 3
    assert ends == {"left": 1}


def test_keys_and_grants_are_bounded_and_room_comes_back():
    ends: dict[str, int] = defaultdict(int)
    refunds = Refunds(100, most=300, most_keys=200)
    for number in range(1000):
        refunds.add(f"k{number}", Grant(ends), 1, 0)
    assert len(refunds) == len(refunds._grants) == 200
    assert refunds.give_back("k999", 1, 1) == 0
    refunds.add("k999", Grant(ends), 1, 50)  # left out: an earlier grant of this key may be unknown
    assert refunds.give_back("k999", 1, 51) == 0
    refunds.add("k999", Grant(ends), 1, 120)
    assert refunds.give_back("k999", 1, 121) == 0
    refunds.add("k999", Grant(ends), 1, 400)
    assert refunds.give_back("k999", 1, 401) == 1
    for number in range(1000):
        refunds.add("one", Grant(ends), 1, 500 + number // 100)
    assert len(refunds) == 300


def test_keys_whose_grants_are_old_are_forgotten():
    refunds = Refunds(100)
    for number in range(10_000):
        refunds.add(f"k{number}", Grant({}), 1, number)
    assert len(refunds._grants) <= 300
