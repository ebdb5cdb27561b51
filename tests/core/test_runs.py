"""Runs against the plainest thing that does the same: a list of pairs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from core.strategies import traced
from headway.core.runs import Runs

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "pop", "remove", "shift"]),
        st.integers(0, 20),
        st.integers(1, 5),
    ),
    max_size=60,
)


class Plain:
    def __init__(self) -> None:
        self.runs: list[list[int]] = []

    def add(self, time: int, count: int) -> int:
        if self.runs and self.runs[-1][0] >= time:
            self.runs[-1][1] += count
        else:
            self.runs.append([time, count])
        return self.runs[-1][0]

    def pop(self) -> int:
        return self.runs.pop(0)[1]

    def remove(self, time: int, count: int) -> int:
        for run in self.runs:
            if run[0] == time:
                found = min(count, run[1])
                run[1] -= found
                self.runs = [run for run in self.runs if run[1]]
                return found
        return 0

    def shift(self, by: int) -> None:
        self.runs = [[time + by, count] for time, count in self.runs]


def check(runs: Runs, plain: Plain) -> None:
    assert runs.pairs() == tuple(number for run in plain.runs for number in run)
    assert runs.total == sum(count for _, count in plain.runs)
    assert (runs.size > 0) == bool(plain.runs)
    if plain.runs:
        assert (runs.first, runs.last_time()) == (plain.runs[0][0], plain.runs[-1][0])
    each = [time for time, count in plain.runs for _ in range(count)]
    assert [runs.time_of(k + 1) for k in range(len(each))] == each


@settings(traced)
@given(STEPS)
def test_runs_are_a_list_of_pairs(steps) -> None:
    runs, plain = Runs(), Plain()
    top, most = 0, 1
    for verb, x, count in steps:
        if verb == "add":
            top += x
            assert runs.add(top, count) == plain.add(top, count)
        elif verb == "pop" and plain.runs:
            assert runs.pop() == plain.pop()
        elif verb == "remove":
            time = plain.runs[x % len(plain.runs)][0] if plain.runs and count > 1 else x
            assert runs.remove(time, count) == plain.remove(time, count)
        elif verb == "shift":
            runs.shift(x - 10)
            plain.shift(x - 10)
            top += x - 10
        most = max(most, len(plain.runs))
        check(runs, plain)
        check(runs.copy(), plain)
    assert runs.mask < 4 * max(1, most)  # the ring is bounded by what it ever held
