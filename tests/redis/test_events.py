# mypy: disable-error-code="arg-type, attr-defined, union-attr, var-annotated"
"""Events, stats and logs of a shared limiter are those of a limiter in memory."""

import warnings

import pytest
from tests.redis.callers import Callers

from headway import Limiter, Remote, Window
from waiting import SOON, wait_until

pytestmark = pytest.mark.realtime


def test_a_reservation_is_told(valkey, name):
    events = []
    told = lambda event: events.append(event.kind)  # noqa: E731
    Limiter("10/s burst 1", name=name, engine=valkey.url, on_event=told).reserve()
    assert events == ["granted"]


def test_events_are_those_of_a_limiter_in_memory(valkey, name):
    """The event of a caller that waited says for how long. A permit that is dropped makes an event, too."""
    told = []
    for engine in ("memory://", valkey.url):
        events = []
        limiter = Limiter("1 concurrent", name=name, engine=engine, on_event=events.append)
        held = limiter.acquire("alice")
        callers = Callers(lambda limiter=limiter: limiter.acquire("alice").complete())
        wait_until(lambda limiter=limiter: limiter.stats().waiting == 1, "a waiter")
        held.complete()
        callers.join()
        (waited,) = [event.seconds for event in events if event.kind == "waited"]
        assert 0 < waited < SOON
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            limiter.acquire()
        told.append([(event.kind, event.limiter, event.key, event.cost) for event in events])
    assert sorted(told[0], key=str) == sorted(told[1], key=str)
    assert ("abandoned", name, None, 1) in told[1]


def test_stats_count_waiters_and_keys(valkey, name):
    limiter = Limiter(Window(1, per=60, remote=Remote()), name=name, engine=valkey.url)
    held = limiter.acquire("alice")
    callers = Callers(lambda: limiter.acquire("alice"))
    wait_until(lambda: limiter.stats().waiting == 1, "a waiter")
    assert limiter.stats().keys == 1
    limiter.close()
    callers.join()
    assert limiter.stats().waiting == 0
    held.complete()


def test_a_long_wait_is_logged_once(valkey, name, caplog, monkeypatch):
    """A minute in earnest."""
    monkeypatch.setattr("headway.diagnostics.LONG_WAIT_NS", 20_000_000)
    limiter = Limiter("10/s burst 1", name=name, engine=valkey.url)
    for _ in range(3):
        limiter.acquire()
    [record] = [record for record in caplog.records if "was waited for" in record.getMessage()]
    assert repr(name) in record.getMessage()
