# mypy: disable-error-code="arg-type, attr-defined, union-attr, var-annotated"
"""`on_engine_error`: what a limiter grants without its engine, by which limit, and what it tells of that."""

import asyncio
import copy
import pickle

import pytest
from tests.redis.callers import NOWHERE, Callers, outcome_of

from headway import AcquireTimeout, Limiter
from headway.errors import EngineUnavailable

pytestmark = pytest.mark.realtime


# -- another limit ---------------------------------------------------------------------------------------


def test_a_copy_says_what_was_said_last(valkey, name):
    """The newest governs: a copy with the old limit would bring all processes back to it."""
    limiter = Limiter("100/minute", name=name, engine=valkey.url)
    limiter.set_limit("50/minute")
    for copied in (pickle.loads(pickle.dumps(limiter)), copy.copy(limiter), copy.copy(limiter)):
        assert copied.limit == limiter.limit
        copied.acquire()
    assert limiter.peek().remaining == 47


def test_another_limit_does_not_give_the_share_again(name):
    limiter = Limiter("100/hour", name=name, engine=NOWHERE, on_engine_error="local")
    assert sum(bool(limiter.try_acquire()) for _ in range(20)) == 10
    limiter.set_limit("120/hour")
    assert sum(bool(limiter.try_acquire()) for _ in range(20)) == 2


# -- an outage -------------------------------------------------------------------------------------------


def test_the_fallback_keeps_the_timeout(name):
    limiter = Limiter("10/hour", name=name, engine=NOWHERE, on_engine_error="local", timeout=0.3)
    limiter.acquire()
    callers = Callers(limiter.acquire, lambda: asyncio.run(limiter.acquire_async()))
    assert [type(outcome) for outcome in callers.join()] == [AcquireTimeout, AcquireTimeout]


def test_the_share_is_of_the_limit_of_the_key(name):
    overrides = {"banned": "0/hour", "friend": "1000/hour"}
    limiter = Limiter("100/hour", name=name, engine=NOWHERE, on_engine_error="local", overrides=overrides)
    granted = {
        key: sum(bool(limiter.try_acquire(key)) for _ in range(120)) for key in ("alice", "banned", "friend")
    }
    assert granted == {"alice": 10, "banned": 0, "friend": 100}


def test_more_than_the_share_is_for_the_engine_alone(name):
    """The request makes sense, and it is not its cost that is wrong."""
    limiter = Limiter("100/hour", name=name, engine=NOWHERE, on_engine_error="local")
    assert isinstance(outcome_of(limiter.try_acquire, cost=50), EngineUnavailable)
    assert isinstance(outcome_of(limiter.acquire, cost=50), EngineUnavailable)
    assert limiter.try_acquire(cost=10)


def test_a_pause_that_was_not_heard_is_not_told(name):
    events = []
    limiter = Limiter("10/hour", name=name, engine=NOWHERE, on_event=lambda event: events.append(event.kind))
    assert isinstance(outcome_of(limiter.pause, 5), EngineUnavailable)
    assert events == ["engine_error"]


@pytest.mark.parametrize("mode", ["open", "local"])
def test_what_passes_without_the_engine_is_told_and_counted(name, mode):
    events = []
    options = {"engine": NOWHERE, "on_engine_error": mode, "on_event": events.append}
    limiter = Limiter("10/hour", name=name, **options)
    limiter.acquire("alice").complete()
    assert [(event.kind, event.limiter, event.key) for event in events] == [
        (kind, name, "alice") for kind in ("engine_error", "granted", "completed")
    ]
    assert (limiter.stats().granted, limiter.stats().completed) == (1, 1)
