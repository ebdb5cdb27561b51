"""What travels to other processes: throttled functions by name, exceptions with their facts, limiters not at all."""

import copy
import inspect
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import _RemoteTraceback
from datetime import timedelta
from pathlib import Path

import cloudpickle
import pytest

from headway import Limiter, RateLimited, Status, errors, throttle
from programs import worker

pytestmark = pytest.mark.both_forms

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_by_name(protocol):
    def there_and_back(value):
        return pickle.loads(pickle.dumps(value, protocol))

    for function in (worker.double, worker.double_later, worker.count, worker.shared):
        assert there_and_back(function) is function
        assert copy.copy(function) is function
        assert copy.deepcopy(function) is function
    assert there_and_back(worker.Client.half) is worker.Client.half
    assert there_and_back(worker.Client.add) is worker.Client.add
    bound = there_and_back(worker.Client(3).add)
    assert bound(4) == 7
    assert there_and_back(worker.Client.make)(5).base == 5
    assert len(pickle.dumps(worker.double)) < 100


def test_what_has_no_name_says_so():
    five = throttle("5/s")
    for nameless in (five(lambda: 1), five(worker.Adder())):
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError), match=r"pickle|lambda"):
            pickle.dumps(nameless)


def test_a_memory_limiter_says_what_to_do():
    for limiter in (Limiter("5/s"), Limiter("5/s", name="here")):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"memory://.*build it where it is used.*module level"):
                attempt(limiter)


def test_functions_of_main_travel_as_joblib_sends_them():
    """They have no name that another process could import; cloudpickle sends the function itself."""
    script = Path(__file__).with_name("main_script.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "limited"
    assert "a limiter on memory:// cannot be pickled" in second, "a limiter of one's own says what to do"


def test_cloudpickle_sends_what_has_a_name_by_its_name():
    for function in (worker.double, worker.double_later, worker.Client.add):
        blob = cloudpickle.dumps(function)
        assert pickle.loads(blob) is function
        assert len(blob) < 200


def limited():
    limiter = Limiter({"requests": "1/hour", "tokens": "30/hour"})
    limiter.acquire("ann")
    with pytest.raises(RateLimited) as caught:
        limiter.acquire("ann", timeout=timedelta(seconds=1))
    return caught.value


ERRORS = [
    limited(),
    errors.RateLimited(math.inf, reason="never"),
    errors.RateLimited(1.5, limit="5/s", key="ann", reason="max_waiting", max_waiting=5),
    errors.AcquireTimeout(1.5, limit="5/s", key="ann", timeout=1),
    errors.InvalidUse("a list is no limit", "AllOf"),
    errors.LimiterClosed("api"),
    errors.LimiterClosed(),
    errors.PermitFinished("complete", "cancel"),
    errors.PermitExpired(2.0),
    errors.LimitMismatch("api", "100/minute", "5 concurrent"),
    errors.EngineUnavailable("redis://db", "timed out"),
    errors.GateClosed("webhooks"),
    errors.GateFull(1000, 2.5),
    errors.IdReused("42", "pizza", "taco"),
    errors.EventRepeated("taco", "42", "rejected", "41"),
    errors.ChangesGone(5, 9),
    errors.InvalidLimit("5/minuts", 2, "a unit", "unknown unit"),
    errors.InvalidArgument("timeout", -1, "seconds"),
    errors.InvalidArgument("key", lambda: 1, "something that can travel"),
    errors.InvalidKey(5),
    errors.NotPromised("5 concurrent"),
    errors.UnsupportedAsync("trio"),
    errors.HeadwayError("anything"),
]


def test_every_error_is_here():
    kinds = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.HeadwayError)
    }
    assert {type(error) for error in ERRORS} == kinds


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_exceptions_keep_their_facts(error, protocol):
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.__dict__.keys() == error.__dict__.keys()
    for name, fact in error.__dict__.items():
        assert back.__dict__[name] == (repr(fact) if callable(fact) else fact), name


def test_the_status_travels_along():
    error = limited()
    status = pickle.loads(pickle.dumps(error)).status
    assert isinstance(status, Status)
    assert status == error.status
    assert status.parts == error.status.parts
    assert [part.remaining for part in status.parts] == [0, 29]
    assert status.headers() == error.status.headers()


@pytest.fixture(scope="module")
def pool():
    """Two processes that know nothing of this one but the names of things."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_spawned_processes_call_throttled_functions(pool):
    assert list(pool.map(worker.double, range(20))) == list(range(0, 40, 2))
    assert pool.submit(worker.Client(3).add, 4).result() == 7
    assert pool.submit(worker.Client.make, 3).result().base == 3
    assert pool.submit(worker.Client.half, 3).result() == 1.5
    assert pool.submit(worker.shared, 3).result() == 4


def test_spawned_processes_have_limiters_of_their_own(pool):
    answers = set(pool.map(worker.take_all, range(20)))
    took = {pid: taken for pid, _, taken in answers if taken}
    assert set(took.values()) == {3}
    assert 1 <= len(took) <= 2
    assert worker.few.peek().remaining == 3


def test_exceptions_come_back_from_processes(pool):
    with pytest.raises(RateLimited) as caught:
        pool.submit(worker.fail, 2).result()
    error = caught.value
    assert (error.key, error.reason, error.timeout, str(error.limit)) == ("ann", "timeout", 2.0, "1/hour")
    assert error.status.remaining == 0
    assert isinstance(error.__cause__, _RemoteTraceback)
