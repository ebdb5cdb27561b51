# mypy: disable-error-code="arg-type, attr-defined, union-attr, var-annotated"
"""What a fork, a close, a new limit or an outage leaves behind: nothing that is another's, and nobody who waits."""

import asyncio
import copy
import pickle
import threading
import time
import types
import warnings

import pytest
from tests.redis.crew import wait_until

from headway import AcquireTimeout, Limiter, Remote, Spacing, Window
from headway.clock import SYSTEM
from headway.errors import EngineUnavailable, LimiterClosed
from headway.flows import drive_shared
from headway.flows.shared import Park

pytestmark = pytest.mark.realtime

NOWHERE = "redis://127.0.0.1:1"


def outcome_of(call, *args, **options):
    try:
        return call(*args, **options)
    except Exception as error:  # noqa: BLE001 - it is looked at
        return error


class Callers:
    """Threads that call something, and what came of it."""

    def __init__(self, *calls):
        self.outcomes = []
        self.threads = [threading.Thread(target=self._call, args=(call,), daemon=True) for call in calls]
        for thread in self.threads:
            thread.start()

    def _call(self, call):
        self.outcomes.append(outcome_of(call))

    def join(self, within=3):
        for thread in self.threads:
            thread.join(within)
        return self.outcomes


# -- forks -----------------------------------------------------------------------------------------------


def test_a_child_counts_only_its_own_waiters(crew, valkey):
    worker = crew.start(
        valkey.url,
        """
limiter = make("1 concurrent", max_waiting=2)
held = limiter.acquire()
threads = [threading.Thread(target=limiter.acquire, daemon=True) for _ in range(2)]
for thread in threads: thread.start()
while limiter.peek().waiting < 2: time.sleep(0.01)
pid = os.fork()
if pid == 0:
    try:
        limiter.acquire(timeout=0.2)
    except RateLimited as error:
        say(error.reason, limiter.stats().waiting)
    os._exit(0)
os.waitpid(pid, 0)
try:
    limiter.acquire(timeout=0.2)
except RateLimited as error:
    say(error.reason, limiter.stats().waiting)
os._exit(0)
""",
    )
    assert worker.hear() == "timeout 0"
    assert worker.hear() == "max_waiting 2"


@pytest.mark.parametrize("limit", ["'1 concurrent'", "Window(1, per=0.2, remote=Remote(max_transit=60))"])
def test_a_child_does_not_end_the_permit_of_its_parent(crew, valkey, limit):
    worker = crew.start(
        valkey.url,
        f"""
limiter = make({limit})
def body():
    with limiter:
        time.sleep(0.1)  # no sign of life is on its way
        pid = os.fork()
        if pid:
            say(os.waitpid(pid, 0)[1])
            say(limiter.peek().in_flight, bool(limiter.try_acquire()))
    return pid
if not body():
    time.sleep(0.3)
    os._exit(0)
time.sleep(0.1)
say(limiter.peek().in_flight)
""",
    )
    assert worker.hear() == "0"
    assert worker.hear() == "1 False"
    assert worker.hear() == "0"
    assert worker.join() == ""


def test_a_child_does_not_wait_for_a_lock_of_its_parent(crew, valkey):
    """Another thread was about to end a permit when the process forked."""
    worker = crew.start(
        valkey.url,
        """
from headway.engines.redis.client import renewal
limiter = make("1 concurrent")
renewal._order.acquire()
pid = os.fork()
if pid == 0:
    limiter.acquire().complete()
    say("complete")
    os._exit(0)
say(os.waitpid(pid, 0)[1])
os._exit(0)
""",
    )
    assert worker.hear(5) == "complete"
    assert worker.hear(5) == "0"


@pytest.mark.parametrize("mode", ["open", "local"])
def test_a_child_without_the_engine_is_not_warned_of_itself(crew, mode):
    worker = crew.start(
        NOWHERE,
        f"""
import logging
logging.getLogger("headway").addHandler(logging.NullHandler())
limiter = make("100/minute", on_engine_error={mode!r})
limiter.acquire()
pid = os.fork()
if pid == 0:
    say(bool(limiter.acquire()))
    os._exit(0)
os.waitpid(pid, 0)
""",
    )
    assert worker.hear() == "True"
    assert worker.join() == ""


# -- close -----------------------------------------------------------------------------------------------


def test_close_ends_the_wait_for_a_slot_to_reserve(valkey, name):
    """Who was told to come back later sleeps, too."""
    limiter = Limiter(Spacing(5, max_reserved=0), name=name, engine=valkey.url)
    limiter.acquire()

    async def main():
        task = asyncio.create_task(limiter.acquire_async())
        callers = Callers(limiter.acquire)
        while limiter.stats().waiting < 2:  # noqa: ASYNC110 - others wait in threads
            await asyncio.sleep(0.01)
        limiter.close()
        with pytest.raises(LimiterClosed, match=name):
            await asyncio.wait_for(task, 2)
        assert [type(outcome) for outcome in callers.join()] == [LimiterClosed]

    asyncio.run(main())


def test_close_reaches_who_is_about_to_wait(valkey, name, monkeypatch):
    """The limiter is closed while the question is on its way."""
    limiter = Limiter("1 concurrent", name=name, engine=valkey.url)
    held = limiter.acquire()

    def pool_of(ledger):
        monkeypatch.undo()
        limiter.close()
        return limiter._shared._engine.pool_of(ledger)

    monkeypatch.setattr(limiter._shared._engine, "pool_of", pool_of)
    callers = Callers(limiter.acquire)
    assert [type(outcome) for outcome in callers.join()] == [LimiterClosed]
    watch = Limiter("1 concurrent", name=name, engine=valkey.url)
    wait_until(lambda: watch.peek().waiting == 0, "an empty queue")
    held.complete()


@pytest.mark.parametrize("task", [False, True], ids=["thread", "task"])
def test_who_is_called_before_its_bell_hangs_is_not_left_asleep(task):
    """It looks whether it was called, is called, and only then lies down."""
    request = types.SimpleNamespace(waker=None, called=False)

    def flow():
        while not request.called:
            request.called = True  # by another thread
            if request.waker is not None:
                request.waker.wake()
            yield Park(request, 20_000_000_000)
        return "called"

    begin = time.monotonic()
    if task:
        assert asyncio.run(drive_shared.run_async(flow(), None, SYSTEM)) == "called"
    else:
        assert drive_shared.run(flow(), None, SYSTEM, lambda: None) == "called"
    assert time.monotonic() - begin < 10


def test_close_ends_the_wait_for_who_stands_in(name):
    limiter = Limiter("10/hour", name=name, engine=NOWHERE, on_engine_error="local")
    assert limiter.try_acquire()
    callers = Callers(limiter.acquire)
    time.sleep(0.2)
    assert callers.outcomes == []
    limiter.close()
    assert [str(outcome) for outcome in callers.join()] == [str(LimiterClosed(name))]


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


def test_the_timeout_is_kept_by_who_stands_in(name):
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


def test_a_reservation_is_told(valkey, name):
    events = []
    told = lambda event: events.append(event.kind)  # noqa: E731
    Limiter("10/s burst 1", name=name, engine=valkey.url, on_event=told).reserve()
    assert events == ["granted"]


def test_events_are_those_of_a_limiter_in_memory(valkey, name):
    """Who waited is told for how long; a permit that is dropped is told of, too."""
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
        assert 0 < waited < 5
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            limiter.acquire()
        told.append([(event.kind, event.limiter, event.key, event.cost) for event in events])
    assert sorted(told[0], key=str) == sorted(told[1], key=str)
    assert ("abandoned", name, None, 1) in told[1]


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


def test_stats_know_who_waits_and_which_keys(valkey, name):
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
