# mypy: disable-error-code="union-attr"
"""What must not get around a limit, nor lose a permit: copies, odd strings, overrides and listeners that fail."""

import copy
import logging
import pickle
import threading
import time
from typing import Any

import pytest

from headway import Limiter
from headway.errors import LimiterClosed
from headway.testing import ManualClock, run


@pytest.fixture
def clock():
    return ManualClock()


class Twin(str):
    """A string that is equal to nothing, not even to itself."""

    def __eq__(self, other):
        return False

    def __hash__(self):
        return id(self)


class Same(str):
    """A string that is equal to everything, under a hash of its own."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return id(self)


@pytest.mark.parametrize("limit", ["5 concurrent", "5/s", "5 concurrent; 5/s"])
def test_a_permit_refuses_to_be_copied(limit, clock):
    limiter = Limiter(limit, clock=clock)
    permit = limiter.acquire()
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a permit cannot be copied or pickled"):
            copied(permit)
    permit.complete()
    assert limiter.peek().in_flight == 0


@pytest.mark.parametrize("kind", [Twin, Same])
def test_a_subclass_of_str_does_not_get_around_the_limit(kind, clock):
    limiter = Limiter("1/hour", clock=clock)
    assert limiter.try_acquire(kind("alice"))
    assert not limiter.try_acquire(kind("alice"))
    assert not limiter.try_acquire("alice")
    assert limiter.try_acquire(kind("bob"))
    limiter.pause(30, kind("carol"))
    assert limiter.try_acquire("carol").reason == "paused"
    assert {type(key) for key in limiter._store.first.ledgers} == {str}


@pytest.mark.parametrize("kind", [Twin, Same])
def test_a_subclass_of_str_in_a_mapping_does_not_get_around_the_limit(kind, clock):
    limiter = Limiter({"host": "1/hour", "all": "10/hour"}, clock=clock)
    assert limiter.try_acquire({"host": kind("a")})
    assert not limiter.try_acquire({"host": kind("a")})
    assert not limiter.try_acquire({kind("host"): "a"})
    assert limiter.try_acquire({kind("host"): kind("b")}, cost={kind("all"): 9})
    assert not limiter.try_acquire({"host": "c"})  # nothing of all is left
    with pytest.raises(ValueError, match="only metrics of this limiter: all, host"):
        limiter.try_acquire({Same("elsewhere"): "a"})


def test_overrides_that_raise_leave_the_limit_as_it_was(clock):
    broken = False

    def overrides(key):
        if broken and key == "bad":
            raise LookupError("the table of customers is away")

    limiter = Limiter("10/hour", overrides=overrides, clock=clock)
    for key in ("good", "bad"):
        limiter.acquire(key)
    before = limiter.limit
    broken = True
    with pytest.raises(LookupError):
        limiter.set_limit("100/hour")
    broken = False
    assert limiter.limit == before
    assert [limiter.peek(key).remaining for key in (None, "good", "bad")] == [10, 9, 9]
    limiter.set_limit("100/hour")
    assert [limiter.peek(key).remaining for key in (None, "good", "bad")] == [100, 99, 99]


@pytest.mark.parametrize("timeout", ["5s", -1, float("nan"), object()])
def test_a_timeout_is_checked_also_when_nothing_has_to_be_waited_for(timeout, clock):
    limiter = Limiter("10/s", clock=clock)

    async def main():
        for wrong in (limiter.acquire_async(timeout=timeout), limiter.hold(timeout=timeout).__aenter__()):
            with pytest.raises((ValueError, TypeError), match="timeout"):
                await wrong

    with pytest.raises((ValueError, TypeError), match="timeout"):
        limiter.acquire(timeout=timeout)
    with pytest.raises((ValueError, TypeError), match="timeout"), limiter.hold(timeout=timeout):
        pass
    run(main(), clock=clock)
    assert limiter.stats().granted == 0


def test_closing_one_of_two_limiters_of_a_name_leaves_the_other_open():
    first = Limiter("1 concurrent", name="test_robustness:closing")
    second = Limiter("1 concurrent", name="test_robustness:closing")
    held = second.acquire()
    heard = []

    def wait(limiter):
        try:
            limiter.acquire().complete()
            heard.append("granted")
        except LimiterClosed:
            heard.append("closed")

    threads = {limiter: threading.Thread(target=wait, args=(limiter,)) for limiter in (first, second)}
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + 20
    while second.stats().waiting < 2 and time.monotonic() < until:
        time.sleep(0.001)
    first.close()
    threads[first].join(20)
    assert heard == ["closed"]
    for verb in (first.try_acquire, first.acquire, first.peek, first.reset):
        with pytest.raises(LimiterClosed):
            verb()
    assert second.peek().in_flight == 1
    held.complete()
    threads[second].join(20)
    assert heard == ["closed", "granted"]
    second.close()
    third = Limiter("1 concurrent", name="test_robustness:closing")
    third.acquire().complete()


def test_a_permit_that_ends_twice_at_once_ends_once(clock):
    limiter = Limiter("5 concurrent", clock=clock)
    for _ in range(50):
        permit = limiter.acquire()
        results: list[Any] = []

        def end(permit=permit, results=results):
            try:
                permit.complete()
                results.append(True)
            except Exception:  # noqa: BLE001 - it has ended already
                results.append(False)

        threads = [threading.Thread(target=end) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [False, False, True]
    assert limiter.peek().in_flight == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_permits_that_are_dropped_are_logged_once(clock, caplog):
    limiter = Limiter("1 concurrent", clock=clock)
    with caplog.at_level(logging.WARNING, "headway"):
        for _ in range(5):
            limiter.acquire()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "limiter '1 concurrent' was dropped without an end" in caplog.text
    assert limiter.stats().abandoned == 5


def test_a_denial_is_a_snapshot_of_its_decision(clock):
    for limit, kind in (("1/minute", "window"), ("1/minute burst 1", "bucket")):
        limiter = Limiter(limit, clock=clock)
        limiter.acquire("a")
        clock.advance(15)
        denied = limiter.try_acquire("a")
        clock.advance(30)
        limiter.reset("a")
        assert denied.retry_after == 45, kind
        status = denied.status
        assert (status.remaining, status.retry_after, status.reset_after) == (0, 45, 45)
        assert (status.exact, status.waiting, status.in_flight, denied.reason) == (True, 0, 0, "limit")
        assert denied.key == "a"
    seats = Limiter("1 concurrent", clock=clock)
    with seats.hold():
        denied = seats.try_acquire()
    assert (denied.status.in_flight, denied.status.exact) == (1, False)
    assert seats.stats().denied == 1


def test_a_denial_of_a_single_metric_knows_its_name(clock):
    limiter = Limiter({"tokens": "1/minute"}, clock=clock)
    limiter.acquire()
    assert limiter.try_acquire().status["tokens"].retry_after == 60
