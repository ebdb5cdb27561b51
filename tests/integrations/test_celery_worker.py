"""What a Celery worker holds, and what it leaves to its pool; without a worker. `test_celery` has real ones."""

from __future__ import annotations

import functools
import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from headway.errors import EngineUnavailable
from headway.integrations import celery_worker
from headway.integrations.celery import LimitedTask, TaskLimit, arguments_of, limit_of, limited
from headway.integrations.celery_worker import STRATEGY, HeldTasks, _Decider, _Held, _Lag, install
from headway.integrations.tasks import Later
from waiting import wait_until

LIMIT = TaskLimit("1/s burst 1")


def plain(order):
    return order


def with_task(self, order):
    return order


@pytest.fixture
def app():
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.task = functools.partial(app.task, shared=False)  # with no other application
    return app


def test_the_limit_of_a_task_is_found_where_its_function_gets_the_arguments_of_the_message(app):
    unlimited = app.task(plain, name="unlimited")
    direct = app.task(limited(LIMIT)(plain), name="direct")
    bound = app.task(limited(LIMIT)(with_task), name="bound", bind=True)
    again = app.task(limited(LIMIT)(plain), name="again", autoretry_for=(OSError,))
    based = app.task(plain, name="based", base=LimitedTask, limit=LIMIT)

    @limited(LIMIT)
    def inner(database, order):
        pass

    @functools.wraps(inner)
    def outer(order):
        return inner("database", order)

    wrapped = app.task(outer, name="wrapped")
    found = {task.name: limit_of(task) for task in (unlimited, direct, bound, again, based, wrapped)}
    assert found == {
        "unlimited": None, "direct": LIMIT, "bound": LIMIT, "again": LIMIT, "based": LIMIT, "wrapped": None
    }  # fmt: skip
    assert arguments_of(direct, [1]) == [1]
    assert arguments_of(based, [1]) == [1]
    assert arguments_of(bound, [1])[1:] == (1,)


def test_only_workers_with_limited_tasks_hold_any(app):
    install(app)
    assert HeldTasks not in app.steps["consumer"]
    task = app.task(limited(LIMIT)(plain), name="direct")
    install(app)
    assert HeldTasks in app.steps["consumer"]
    assert task.Strategy == STRATEGY
    assert app.tasks["celery.chord"].Strategy != STRATEGY


def test_tasks_that_shall_wait_in_the_pool_are_not_held(app, monkeypatch):
    task = app.task(limited("1/s burst 1", wait=1)(plain), name="waits")
    monkeypatch.setattr(celery_worker, "default", lambda task, app, consumer: consumer)
    consumer = SimpleNamespace(held_tasks=SimpleNamespace(admit=None))
    assert celery_worker.strategy(task, app, consumer) is consumer


class Limit:
    """Answers as it is told to, and counts how often it was asked."""

    max_delay = 600

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def ahead(self, *given):
        self.asked.append(given)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def decide(app):
    task = app.task(plain, name="any")
    decider = _Decider()

    def decide(limit, received=None):
        request = SimpleNamespace(request_dict={"id": "1"}, args=[7], kwargs={"a": 1})
        each = _Held(task, limit, request)
        each.received = received or each.received
        decider.ask(each)
        found: list[Any] = []

        def heard():
            found.extend(decider.answers())
            return found

        wait_until(heard, "an answer")
        assert found[0][0] is each
        return found[0][1]

    yield decide
    decider.close()


def test_a_slot_is_told_by_the_clock_of_the_worker(decide):
    limit = Limit(Later(5, "promise"))
    before = time.monotonic()
    later = decide(limit)
    assert before + 5 <= later.seconds <= time.monotonic() + 5
    assert later.promise == "promise"
    assert limit.asked == [([7], {"a": 1}, None, None)]


def test_the_pool_meets_what_a_key_raises(decide):
    assert decide(Limit(KeyError("shop"))) is None


def test_an_engine_that_is_away_is_not_asked_for_each_task(decide):
    limit = Limit(EngineUnavailable("away"))
    first, second = decide(limit), decide(limit)
    assert first.promise is second.promise is None
    assert 1 <= first.seconds <= 2
    if len(limit.asked) > 1:  # this machine took a second for it
        assert len(limit.asked) == 2
    # The broker bounds for how long a task may be held: the pool sends it back.
    assert decide(limit, received=time.monotonic() - 599.5) is None


def test_tasks_get_to_a_pool_earlier_if_it_begins_late():
    lag = _Lag()
    assert lag.early(LIMIT) == celery_worker.EARLY
    for _ in range(50):
        lag.handed_on(SimpleNamespace(time_start=time.time() + 0.02), time.monotonic())
    assert celery_worker.EARLY + 0.015 < lag.early(LIMIT) < celery_worker.EARLY + 0.06
    for _ in range(50):
        lag.handed_on(SimpleNamespace(time_start=time.time() + 60), time.monotonic())
    assert lag.early(LIMIT) == pytest.approx(celery_worker.LONGEST_EARLY * LIMIT.early)
    lag.handed_on(SimpleNamespace(time_start=None), time.monotonic())  # not begun yet
