"""Fork and spawn: a forked limiter warns once and works, whatever the other threads of the parent were doing."""

import asyncio
import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

import pytest

import headway
from headway import Limiter, RateLimited, throttle
from programs import worker
from waiting import NEVER

TESTS = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.both_forms,
    # From 3.12 Python itself warns about forking with threads; that is what is tested here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: not on Windows")


def in_child(function, *args):
    """Run it in a forked child: what it returns, and the warnings that it gave. A child that hangs is killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer = ("failed", "no answer")
        try:
            signal.alarm(int(NEVER))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = function(*args)
            answer = (result, [str(warning.message) for warning in caught])  # type: ignore[assignment]
        except BaseException:  # noqa: BLE001 - it has to be told before the child is gone
            answer = ("failed", traceback.format_exc())
        finally:
            os.write(writing, pickle.dumps(answer))
            os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], 2 * NEVER)
        data = os.read(reading, 1 << 16) if ready else b""
    finally:
        os.close(reading)
        if not data:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert data, "the child hangs"
    result, said = pickle.loads(data)
    assert result != "failed", said
    return result, said


def drain(limiter):
    taken = 0
    while limiter.try_acquire():
        taken += 1
    return taken


@needs_fork
def test_a_forked_limiter_warns_once_and_works():
    limiter = Limiter("5/hour", name="forked api")
    limiter.acquire()

    def child():
        return drain(limiter), drain(limiter)

    result, (message,) = in_child(child)
    assert result == (4, 0)
    assert "'forked api' ('5/hour')" in message
    assert "twice as much" in message
    assert "embedded://" in message
    assert drain(limiter) == 4, "and nothing changed here, nor a warning"


@needs_fork
@pytest.mark.parametrize("verb", ["try_acquire", "acquire", "with", "hold", "throttle", "async", "reserve"])
def test_every_verb_warns_in_the_child(verb):
    limiter = Limiter("5/hour burst 5")

    def child():
        if verb == "with":
            with limiter:
                pass
        elif verb == "hold":
            with limiter.hold():
                pass
        elif verb == "throttle":
            throttle(limiter)(lambda: 0)()
        elif verb == "async":
            asyncio.run(limiter.acquire_async())
        else:
            getattr(limiter, verb)()
        return limiter.stats().granted

    result, said = in_child(child)
    assert result == 1
    assert len(said) == 1


@needs_fork
def test_where_the_warning_points_to():
    limiter = Limiter("5/hour")

    def child():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            limiter.try_acquire()
        return [warning.filename for warning in caught]

    assert in_child(child)[0] == [__file__]


@needs_fork
def test_a_limiter_made_after_the_fork_does_not_warn():
    def child():
        limiter = Limiter("5/hour")
        return drain(limiter)

    assert in_child(child) == (5, [])


@needs_fork
@pytest.mark.realtime
def test_fork_while_threads_wait():
    """The queue of the parent goes on as it was; in the child no thread waits."""
    limiter = Limiter("1/hour")
    limiter.acquire()
    served = []

    def wait(number):
        limiter.acquire()
        served.append(number)

    threads = []
    for number in range(3):
        threads.append(threading.Thread(target=wait, args=(number,), daemon=True))
        threads[-1].start()
        while limiter.stats().waiting <= number:
            time.sleep(0.001)

    def child():
        waiting = limiter.stats().waiting
        denied = limiter.try_acquire()
        with pytest.raises(RateLimited):
            limiter.acquire(timeout=0.01)
        limiter.reset()
        with limiter:
            return waiting, bool(denied), served

    assert in_child(child)[0] == (0, False, [])
    assert limiter.stats().waiting == 3
    for thread in threads:
        limiter.reset()
        thread.join(NEVER)
    assert served == [0, 1, 2]


@needs_fork
@pytest.mark.realtime
def test_fork_again_and_again_while_threads_are_busy():
    """Whatever lock a thread holds at the moment of the fork, the child does not wait for it."""
    limiter = Limiter("100000/s; 50 concurrent")
    single = Limiter("2 concurrent")
    stop = threading.Event()

    def work():
        while not stop.is_set():
            with limiter.hold("ann"):
                pass
            with single:
                pass
            limiter.peek()

    async def tasks():
        async def task():
            while not stop.is_set():
                async with single:
                    await asyncio.sleep(0)

        await asyncio.gather(*(task() for _ in range(3)))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    threads.append(threading.Thread(target=asyncio.run, args=(tasks(),), daemon=True))
    for thread in threads:
        thread.start()

    def child():
        with limiter.hold("ann"), limiter.hold("bob"):
            pass
        single.peek()
        single.reset()
        with single:
            return limiter.try_acquire("ann").complete()  # type: ignore[union-attr]

    try:
        for _ in range(10):
            result, said = in_child(child)
            assert result is None
            assert len(said) == 2, said
            time.sleep(0.002)
    finally:
        stop.set()
        for thread in threads:
            thread.join(NEVER)
    assert single.peek().in_flight == limiter.peek("ann").in_flight == 0
    assert limiter.stats().waiting == single.stats().waiting == 0


@needs_fork
def test_fork_inside_a_block():
    """The one thread that goes on in the child leaves its block there, and the parent leaves its own."""
    limiter = Limiter("2 concurrent")
    with limiter:

        def child():
            limiter.__exit__(None, None, None)
            return limiter.peek().in_flight

        assert in_child(child)[0] == 0
        assert limiter.peek().in_flight == 1
    assert limiter.peek().in_flight == 0


@needs_fork
def test_permits_of_threads_that_are_not_there():
    """No thread of the child can hand back what other threads held at the fork: reset() is the way out."""
    limiter = Limiter("2 concurrent")
    taken, done = threading.Event(), threading.Event()

    def hold():
        with limiter, limiter:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    taken.wait()

    def child():
        before = bool(limiter.try_acquire())
        limiter.reset()
        return before, bool(limiter.try_acquire())

    try:
        result, _ = in_child(child)
    finally:
        done.set()
        thread.join()
    assert tuple(result) == (False, True)


@needs_fork
def test_multiprocessing_by_fork():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(worker.double, range(10)) == list(range(0, 20, 2))


def test_two_spawned_processes():
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as first, context.Pool(1) as second:
        answers = [first.apply_async(worker.take_all), second.apply_async(worker.take_all)]
        (one, form, taken), (other, _, as_many) = (answer.get(timeout=NEVER) for answer in answers)
    assert len({one, other, os.getpid()}) == 3
    assert taken == as_many == 3
    assert form == headway.compiled, "HEADWAY_PURE is inherited"


FORMS = """
import headway, sys
from headway import Limiter, throttle
limiter = Limiter("2/hour; 5 concurrent")
call = throttle("3/hour", on_limit="skip", timeout=0)(lambda: "called")
with limiter: pass
modules = [module for name, module in sys.modules.items() if name.startswith("headway")]
binary = [module.__name__ for module in modules if not module.__file__.endswith(".py")]
print(headway.compiled, bool(binary), [call() for _ in range(4)],
      bool(limiter.try_acquire()), bool(limiter.try_acquire()))
"""


@pytest.mark.parametrize("pure", ["0", "1", "", "yes"])
def test_the_form_that_runs(pure):
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORMS],
        env=os.environ | {"HEADWAY_PURE": pure},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()
    built = any((TESTS.parent / "src" / "headway").glob("core/*.so")) or headway.compiled
    form = built and pure in ("0", "")
    used = ["called", "called", "called", None]
    assert said == f"{form} {form} {used} True False"


HALF_IMPORTED = """
import sys, types
sys.modules["asyncio"] = types.ModuleType("asyncio")
from headway import Limiter
with Limiter("5/s"): pass
print("fine")
"""


def test_asyncio_half_imported_by_another_thread():
    done = subprocess.run([sys.executable, "-c", HALF_IMPORTED], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr
