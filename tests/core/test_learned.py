"""A limit that is learned from refusals: against a remote that serves a sliding window, in virtual time."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.learned import CALM_WINDOWS, LONGEST_CALM, SHORTEST_CALM, Learned

S = 10**9


class World:
    """A remote that serves `limit` in any window, and a client that uses all that it may."""

    def __init__(self, configured, limit, window, flight):
        self.learned = Learned(configured, window)
        self.limit, self.window, self.flight = limit, window, flight
        self.served: deque[int] = deque()
        self.used: deque[int] = deque()
        self.refusals: list[int] = []
        self.kept = configured
        self.now = self.paused = 0

    def run(self, until):
        """Calls one after another, as soon as the kept limit has room, each answered a flight later."""
        while self.now < until:
            answers: list[bool] = []
            start = self.now
            while len(answers) < self.kept and self.use(start):
                answers.append(self.arrive(start))
                start += self.flight // 16
            self.now = start + self.flight
            for refused in answers:
                self.answer(refused)
            self.now = max(self.now, self.paused, self.used[0] + self.window if self.used else 0)
        return self

    def use(self, now):
        while self.used and self.used[0] <= now - self.window - self.flight:
            self.used.popleft()
        if len(self.used) >= self.kept:
            return False
        self.used.append(now)
        return True

    def arrive(self, now):
        while self.served and self.served[0] <= now - self.window:
            self.served.popleft()
        if len(self.served) >= self.limit:
            return True
        self.served.append(now)
        return False

    def answer(self, refused):
        if not refused:
            self.kept = self.learned.served(self.now)
            return
        self.refusals.append(self.now)
        wait = self.served[0] + self.window - self.now if self.served else 0
        used = len(self.used) if self.learned.begins(self.now) else 0
        self.paused = max(self.paused, self.now + wait)
        self.kept = self.learned.refused(self.now, self.paused, used)


@given(
    configured=st.integers(2, 200),
    part=st.floats(0.5, 1),
    window=st.sampled_from([S, 10 * S, 60 * S]),
    flight=st.integers(0, S // 50),
)
def test_a_lower_limit_is_learned_in_one_round(configured, part, window, flight):
    limit = max(1, -(-configured // 2), int(configured * part))
    world = World(configured, limit, window, flight)
    world.run(max(SHORTEST_CALM, CALM_WINDOWS * window) - S)
    begun = [
        at
        for at, before in zip(world.refusals, [-window, *world.refusals], strict=False)
        if at - before >= window
    ]
    assert len(begun) <= 1
    assert world.kept <= limit or not world.refusals
    # And hardly less than the remote allows is used.
    assert world.kept >= limit - limit // 16 - 1


def test_a_limit_that_is_far_lower_is_learned_in_a_few_rounds():
    world = World(100, 5, S, S // 100).run(59 * S)
    assert 4 <= world.kept <= 5
    assert all(at < 10 * S for at in world.refusals)


def test_what_is_used_by_half_only_teaches_nothing():
    learned = Learned(100, S)
    assert learned.refused(0, S, used=49) == 100
    assert learned.refused(1, S) == 100
    assert learned.refused(2 * S, 3 * S, used=50) == 50


def test_a_calm_raises_the_limit_and_a_refusal_doubles_the_calm():
    world = World(16, 8, S, 0)
    world.run(SHORTEST_CALM - S)
    assert world.kept <= 8
    world.run(3600 * S)
    # Tried after one minute, two, four, ...: a handful of rounds in an hour.
    rounds = sum(b - a > 2 * S for a, b in zip([-9 * S, *world.refusals], world.refusals, strict=False))
    assert 3 <= rounds <= 12
    world.limit = 16
    world.run(40 * 3600 * S)
    assert world.kept == 16


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 100 * S), st.integers(0, 50)), max_size=60),
    st.integers(1, 50),
)
def test_it_never_leaves_one_to_the_configured(steps, configured):
    learned, now = Learned(configured, S), 0
    for refused, later, used in steps:
        now += later
        before = learned.count
        kept = learned.refused(now, now + S, used) if refused else learned.served(now)
        assert 1 <= kept <= configured
        assert kept >= before // 2
        assert (kept <= before) if refused else (kept >= before)


@pytest.mark.parametrize("window", [1, S, 86_400 * S])
def test_the_longest_calm_is_an_hour_or_ten_windows(window):
    learned = Learned(10, window)
    now = 0
    for _ in range(40):
        learned.refused(now, now, used=10)
        now += max(LONGEST_CALM, CALM_WINDOWS * window) + 1
        before = learned.count
        assert learned.served(now) == before + 1
