"""The figures of the demo, on visits whose figures are known."""

import pytest

from headway import Window
from headway.lab.demo.crowd import Crowd, Visit
from headway.lab.demo.score import Score, busy


class Seen(Crowd):
    """A crowd whose visits are given; no call is made."""

    def __init__(self, visits, elapsed):
        super().__init__("seen", lambda call: call, port=0, workers=0)
        self.visits = visits
        self.elapsed = elapsed


def perfect(n, gap, latency, elapsed):
    """What n permits do that are never idle."""
    for i in range(int(elapsed / (gap + latency)) + 1):
        sent = i * (gap + latency)
        yield from (Visit(0.0, sent, sent + latency, False) for _ in range(n))


@pytest.mark.parametrize("elapsed", [0.5, 1.0, 3.3, 12.0])
def test_permits_that_are_never_idle_use_all_of_the_ceiling(elapsed):
    limit = Window(20, per=1)
    gap = Score(Seen([], 1.0), limit).gap
    score = Score(Seen(list(perfect(20, gap, 0.06, elapsed)), elapsed), limit)
    assert score.use == pytest.approx(1.0)
    assert score.latency == pytest.approx(0.06)
    assert score.ceiling == pytest.approx(20 / (gap + 0.06))
    assert score.rate == pytest.approx(score.ceiling), "at every moment, also while the first burst is out"


@pytest.mark.parametrize("elapsed", [0.5, 1.0, 3.3, 12.0])
def test_the_rate_and_its_share_of_the_ceiling_do_not_contradict_each_other(elapsed):
    """Latencies that differ, permits that are idle now and then."""
    limit = Window(20, per=1)
    gap = Score(Seen([], 1.0), limit).gap
    visits = []
    for permit in range(20):
        at = permit * 0.01
        while at < elapsed:
            done = at + 0.02 + 0.005 * permit
            visits.append(Visit(0.0, at, done, False))
            at = done + gap + 0.003 * permit
    score = Score(Seen(visits, elapsed), limit)
    assert score.rate == pytest.approx(score.use * score.ceiling)
    assert score.rate < score.ceiling


def test_the_gap_is_that_of_the_design():
    assert Score(Seen([], 1.0), Window(20, per=1)).gap == pytest.approx(1.016508129, abs=1e-6)


def test_permits_that_rest_too_long_use_less():
    visits = [Visit(0, 0, 0, False), Visit(0, 2, 2, False)]
    assert busy(visits, gap=1.0, elapsed=4.0) == 2.0


def test_refused_calls_are_no_answers():
    visits = [Visit(0, 0.1, 0.2, False), Visit(0, 0.5, 0.6, True)]
    score = Score(Seen(visits, 1.0), Window(20, per=1))
    assert (score.answered, score.refused) == (1, 1)
    assert score.wait_p99 == 0.5


def test_an_empty_crowd_has_figures_too():
    score = Score(Seen([], 0.0), Window(20, per=1))
    assert (score.use, score.rate, score.wait_p50, score.answered) == (0.0, 0.0, 0.0, 0)
