"""A refusal with borrowed tokens is decided without the lock, and loses nothing by it."""

import time

import pytest

from headway import Concurrency, EngineUnavailable, Limiter, Remote, Window

NEVER = 30.0
LIMITS = [
    Window(2, per="1h"),
    Window(2, per="1h", remote=Remote()),
    Concurrency(2),
    "2/hour burst 2",
    "0/s",
]


def until(happened):
    end = time.monotonic() + NEVER
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_a_refused_request_is_counted_and_says_what_a_look_says(valkey, name, limit):
    limiter = Limiter(limit, name=name, engine=valkey.url, prefetch=True)
    most = limiter.peek().limit.capacity
    answers = []

    def all_granted():
        answers.append(limiter.try_acquire())
        return sum(map(bool, answers)) == most

    until(all_granted)
    answers += [limiter.try_acquire() for _ in range(10)]
    granted = [answer for answer in answers if answer]
    stats = limiter.stats()
    assert (stats.granted, stats.denied) == (len(granted), len(answers) - len(granted))
    assert len(granted) == most
    assert limiter._store.first.default.demand.total == len(answers)
    denied, seen = answers[-1], limiter.peek()
    assert not denied
    assert (denied.limit, denied.reason, denied.status.remaining) == (seen.limit, "limit", seen.remaining)
    assert (denied.status.exact, denied.status.in_flight) == (seen.exact, seen.in_flight)
    assert denied.retry_after == pytest.approx(seen.retry_after, abs=1)
    for permit in granted:
        permit.complete()
    limiter.close()


@pytest.mark.parametrize("limit", ["2/hour burst 2", Concurrency(2)], ids=str)
def test_a_refusal_while_the_engine_is_away_is_the_engines_error(make_server, name, limit):
    with make_server() as server:
        url = server.url
    limiter = Limiter(limit, name=name, engine=url, prefetch=True, engine_timeout=1)

    def fails():
        try:
            limiter.try_acquire()
        except EngineUnavailable:
            return True
        return False

    until(fails)
    assert limiter._store.first.default.demand.total > 0
    limiter.close()
