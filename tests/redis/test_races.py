# mypy: disable-error-code="arg-type, attr-defined, type-arg, union-attr"
"""Moments that are hard to hit, made to happen: two threads at once, the collector, no more threads, a full wire."""

import asyncio
import gc
import sys
import threading
import time
from collections import deque

import pytest
from tests.redis.engine_checks import start_slowly

from headway import Limiter, Remote, Window
from headway.engines.redis.client.requests import Release
from headway.engines.redis.net.pool import ServerPool
from headway.errors import EngineUnavailable
from headway.outcome import Outcome
from waiting import NEVER, SOON, wait_until

pytestmark = pytest.mark.realtime

HELD = Window(100_000, per=60, remote=Remote(resolution=0, max_transit=60))


def ledger_of(limiter):
    return limiter._shared.ledgers.registry.ledger((None,))


def within(seconds, call):
    """Whether it returns in time; it goes on in a thread if it does not."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


# -- threads ---------------------------------------------------------------------------------------------


def test_a_wait_that_begins_while_the_listener_ends_is_served(valkey, connect):
    """The listener has found that no caller waits."""
    worker = connect(valkey.url).worker
    listener = worker._listener = threading.current_thread()
    came: list[bool] = []

    def has_waiters():
        if not came:
            came.append(True)
            # As `listen` does: it looks, and the listener has not said yet that it ends.
            came.append(worker._listener is None)
            return False
        return True

    worker._has_waiters = has_waiters
    assert worker._listener_may_end()
    assert came[1]
    worker._listener = listener
    assert not worker._listener_may_end()
    assert worker._listener is listener


def test_connections_are_given_up_while_others_take_them(valkey, connect):
    class Contended(deque):
        """Another thread takes what is there, right after it was seen."""

        def __len__(self):
            size = deque.__len__(self)
            self.clear()
            return size

    pool = connect(valkey.url).pools()[0]
    pool.put_back(pool.take())
    pool._idle = Contended(pool._idle)
    ServerPool.discard_connections(pool, ConnectionError("cut"))


@pytest.mark.parametrize("thread", ["headway worker", "headway listener"])
def test_a_process_that_may_have_no_more_threads_goes_on(valkey, name, monkeypatch, thread):
    limiter = Limiter("10 concurrent", name=name, engine=f"{valkey.url}?lease=0.6", engine_timeout=2)
    start = threading.Thread.start

    def refuse(self):
        if self.name == thread:
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        limiter.acquire().complete()
    permit = limiter.acquire()
    time.sleep(1)
    permit.check()
    permit.complete()


def test_a_child_does_not_wait_for_a_thread_that_opened_an_engine(crew, valkey):
    worker = crew.start(
        valkey.url,
        """
from headway.engines import redis as engines
engines.opened.lock.acquire()
pid = os.fork()
if pid == 0:
    make("1/s").acquire()
    say("granted")
    os._exit(0)
say(os.waitpid(pid, 0)[1])
os._exit(0)
""",
    )
    assert worker.hear() == "granted"
    assert worker.hear() == "0"


# -- the collector ---------------------------------------------------------------------------------------


def test_the_collector_may_end_one_permit_while_another_is_ended(valkey, name):
    """It ends coroutines and generators that were dropped, in whatever thread, and whatever that thread does."""
    limiter = Limiter(HELD, name=name, engine=valkey.url, engine_timeout=2)
    permit = limiter.acquire()
    acquire, post = permit._decision, limiter._shared._engine.post_now

    class Dropped:
        def __init__(self):
            self.itself = self

        def __del__(self):
            post(Release(acquire, Outcome.ABANDON))

    def work():
        for _ in range(3000):
            Dropped()
            post(Release(acquire, Outcome.ABANDON))

    before, interval = gc.get_threshold(), sys.getswitchinterval()
    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    gc.set_threshold(7)
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(NEVER)
    finally:
        gc.set_threshold(*before)
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads)
    permit.abandon()


# -- releases and unknown outcomes ---------------------------------------------------------------------------------


def test_an_end_does_not_wait_for_a_server_that_does_not_read(make_server, name):
    """Its socket is full. A unix socket takes a release whole, or not at all."""
    server = make_server(unix=True)
    limiter = Limiter(HELD, name=name, engine=f"{server.url}?lease=300", engine_timeout=NEVER)
    permits = [limiter.acquire() for _ in range(3000)]
    permits.pop().complete()
    time.sleep(1.5)  # the background worker sleeps by now
    server.stop()
    longest = 0.0
    for permit in permits:
        ledger_of(limiter).waiting = 1.0  # a caller waits for it, so that it is posted at once
        began = time.monotonic()
        permit.complete()
        longest = max(longest, time.monotonic() - began)
    server.cont()
    assert longest < SOON
    wait_until(lambda: limiter.peek().in_flight == 0, "all ends")


def test_an_end_on_a_connection_that_has_ended_is_soon_said_again(valkey, make_proxy, name):
    """Long before the background worker visits the ledger."""
    proxy = make_proxy(valkey)
    limiter = Limiter(HELD, name=name, engine=f"{proxy.url}?lease=300", engine_timeout=2)
    watch = Limiter(HELD, name=name, engine=valkey.url, engine_timeout=2)
    posts = limiter._shared._engine.pools()[0].release_sender

    async def main():
        for _ in range(2):
            (await limiter.acquire_async()).complete()
            await asyncio.sleep(1.5)  # the background worker sleeps by now
        permit = await limiter.acquire_async()
        posts.wire.socket.shutdown(1)  # it was cut, and the first to write does not notice

        class Deaf:
            def __init__(self, socket):
                self.socket = socket
                self.shutdown, self.recv, self.close = socket.shutdown, socket.recv, socket.close

            def send(self, payload):
                return len(payload)

        posts.wire.socket = Deaf(posts.wire.socket)
        permit.complete()
        await asyncio.to_thread(wait_until, lambda: watch.peek().in_flight == 0, "the end")

    asyncio.run(main())


def test_a_grant_with_a_lost_answer_is_soon_given_back(valkey, make_proxy, name):
    proxy = make_proxy(valkey)
    limiter = Limiter(HELD, name=name, engine=f"{proxy.url}?lease=300", engine_timeout=0.3)
    watch = Limiter(HELD, name=name, engine=valkey.url, engine_timeout=2)
    limiter.acquire().complete()
    time.sleep(1.5)  # the background worker sleeps by now
    proxy.drop_answers(1, only=b"EVALSHA", cut=False)
    with pytest.raises(EngineUnavailable):
        limiter.acquire()
    wait_until(lambda: watch.peek().in_flight == 0, "the grant that no caller got")


@pytest.mark.parametrize("how", ["complete", "cancel", "drop"])
def test_a_reservation_without_a_waiter_is_forgotten(valkey, name, how):
    """Its holder sleeps by itself, for `delay` seconds."""
    limiter = Limiter("1000/s burst 1", name=name, engine=f"{valkey.url}?lease=0.6")
    for _ in range(20):
        permit = limiter.reserve()
        if how != "drop":
            getattr(permit, how)()
    wait_until(lambda: not ledger_of(limiter).busy, "no sleeper")


# -- time-outs -------------------------------------------------------------------------------------------


def test_a_slow_server_has_no_more_time_to_be_met(valkey, make_proxy, name):
    """Each of its answers is in time, and there are many until the first permit."""
    proxy = make_proxy(valkey)
    proxy.delay(answers=0.8)
    limiter = Limiter("10/s", name=name, engine=proxy.url, engine_timeout=1)
    with pytest.raises(EngineUnavailable):
        limiter.acquire()


def test_a_server_that_has_to_be_started_takes_its_own_time(tmp_path, connect, name):
    """Longer than an answer may take."""
    engine = connect(f"embedded://{tmp_path}", timeout=1)
    limiter = Limiter("10/s", name=name, engine=engine, engine_timeout=1)
    start_slowly(engine, 1.2)
    assert asyncio.run(limiter.acquire_async())


def test_ends_wait_while_it_is_found_out_which_ledger_it_is(valkey, name):
    """A ledger that is trusted after a failover may be the same: what ended meanwhile ends there."""
    limiter = Limiter("10 concurrent", name=name, engine=valkey.url)
    ledger = ledger_of(limiter)
    permit = limiter.acquire()
    epoch, ledger.epoch = ledger.epoch, b""
    ledger.ends.append(Release(permit._decision, Outcome.ABANDON))
    assert ledger.take_ends() == []
    ledger.epoch = epoch
    assert len(ledger.take_ends()) == 1
    permit.complete()
