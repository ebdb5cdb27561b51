# mypy: disable-error-code="attr-defined, union-attr"
"""Waiters in the queue are woken in time, also when no other command comes and when messages overtake answers."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
from tests.redis.servers import eventually

from headway import Limiter, Spacing
from headway.engines.redis.client.background import ALERT, SOON
from headway.engines.redis.client.requests import Acquire
from headway.engines.redis.engine import Engine
from headway.engines.redis.net.address import read_address
from headway.engines.redis.script.protocol import WAIT
from waiting import SOON as SOON_ENOUGH

LEASE = 300
"""Seconds: a waiter that is not woken would be left for a third of it."""


@pytest.fixture
def engines(valkey):
    """engines(to): an engine of its own, as another process would have it."""
    made = []

    def make(to=valkey):
        made.append(Engine(read_address(f"{to.url}?lease={LEASE}")))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.mark.realtime
def test_a_waiter_for_several_limits_is_not_left_when_no_other_command_comes(engines, name):
    """When it comes, a permit is out for an unknown time. Then it waits for a window only, and no command comes."""
    limiter = Limiter("1 concurrent; 1 per 300ms", name=name, engine=engines())
    held = limiter.acquire()
    granted = []

    def work():
        permit = limiter.acquire(timeout=LEASE / 2)
        granted.append(time.monotonic())
        permit.complete()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: limiter.peek().waiting == 3, "three waiters in the queue")
    begin = time.monotonic()
    held.complete()
    for thread in threads:
        thread.join(LEASE)
    assert len(granted) == 3
    assert granted[-1] - begin < SOON_ENOUGH


@pytest.mark.realtime
@pytest.mark.parametrize("limit", ["1 concurrent; 1 per 300ms", "1 concurrent"])
def test_a_message_that_overtakes_the_answer_is_not_lost(engines, valkey, name, limit):
    """The message that a waiter's turn has come may be heard before the answer that it has to wait at all."""
    holder = Limiter(limit, name=name, engine=engines())
    engine = engines()
    waiter = Limiter(limit, name=name, engine=engine)
    engine.worker.listen()
    eventually(lambda: valkey.client().pubsub_numsub(engine.wake)[0][1] == 1, "a subscription")
    held = holder.acquire()
    stand = engine.wait_for

    def stand_late(acquire):
        held.complete()
        eventually(lambda: acquire.ticket in engine._early, "the message")
        stand(acquire)

    engine.wait_for = stand_late
    begin = time.monotonic()
    waiter.acquire(timeout=LEASE / 2).complete()
    assert time.monotonic() - begin < SOON_ENOUGH
    assert not engine._early


RELEASE_AND_EXIT = """
begun = []
signal.signal(signal.SIGUSR1, lambda *_: begun.append(True))
permit = make("1 concurrent", engine_timeout=5).acquire()
say("has it")
while not begun: time.sleep(0.002)
permit.complete()
os._exit(0)
"""


@pytest.mark.realtime
def test_a_release_that_a_process_sends_as_it_ends_may_arrive_late(crew, valkey, make_proxy):
    """As from a child that is forked for each job: no process is left that could send it again."""
    proxy = make_proxy(valkey)
    worker = crew.start(f"{proxy.url}?lease={LEASE}", RELEASE_AND_EXIT)
    assert worker.hear() == "has it"
    proxy.delay(requests=0.2)
    worker.process.send_signal(signal.SIGUSR1)
    worker.join()
    limiter = Limiter("1 concurrent", name=crew.name, engine=f"{valkey.url}?lease={LEASE}")
    eventually(lambda: limiter.peek().in_flight == 0, "its end")


@pytest.mark.realtime
def test_a_release_that_was_refused_is_sent_again_soon(engines, valkey, make_proxy, name):
    """A release that is too late to serve the queue is refused. The background worker reads the answer."""
    proxy = make_proxy(valkey)
    holder = Limiter("1 concurrent", name=name, engine=engines(proxy), engine_timeout=5)
    waiter = Limiter("1 concurrent", name=name, engine=engines())
    holder.acquire().complete()  # the first end may be late
    held = holder.acquire()
    got = []
    thread = threading.Thread(target=lambda: got.append(waiter.acquire(timeout=LEASE / 2)))
    thread.start()
    # A holder that knows of a waiter posts its release at once.
    eventually(lambda: holder.peek().waiting == 1, "one waiter in the queue")
    eventually(lambda: holder._shared._engine.worker._drowsy, "a background worker that sleeps")
    proxy.delay(requests=0.2)
    begin = time.monotonic()
    held.complete()
    thread.join(LEASE)
    assert time.monotonic() - begin < SOON_ENOUGH
    got[0].complete()


@pytest.mark.realtime
def test_what_was_granted_before_it_was_asked_for_expires_as_much_sooner(engines, valkey, name):
    """A message that was lost is made good by a question: but the lease began with the grant, not with the question."""
    holder = Limiter("1 concurrent", name=name, engine=engines())
    engine = engines()
    waiter = Limiter("1 concurrent", name=name, engine=engine)
    held = holder.acquire()
    engine.call = lambda ticket, call: None
    got = []
    thread = threading.Thread(target=lambda: got.append(waiter.acquire(timeout=LEASE / 2)))
    thread.start()
    eventually(lambda: valkey.client().pubsub_numsub(engine.wake)[0][1] == 1, "a subscription")
    time.sleep(0.2)  # it asks once when it can hear
    held.complete()
    eventually(lambda: holder.peek().waiting == 0, "the grant")
    time.sleep(1)
    assert not got
    engine.worker.visit_all()
    thread.join(LEASE)
    late = got[0].expires_in
    got[0].complete()
    eventually(lambda: holder.peek().in_flight == 0, "the end")  # it travels by itself, and may be overtaken
    with waiter.hold() as permit:
        assert late < permit.expires_in - 0.9


def calls_while_nothing_happens(valkey, seconds=0.5):
    def calls():
        return valkey.client().info("commandstats")["cmdstat_evalsha"]["calls"]

    before = calls()
    time.sleep(seconds)
    return calls() - before


@pytest.mark.realtime
@pytest.mark.parametrize("limit", ["2 concurrent", {"slots": "2 concurrent", "rest": "100/s"}])
def test_a_waiter_behind_one_that_needs_more_does_not_poll_all_the_time(engines, valkey, name, limit):
    """What it needs is there, but not for it: it waits for the one before it, and polls when that may be served."""
    limiters = [Limiter(limit, name=name, engine=engines()) for _ in range(2)]

    def some(number):
        return number if isinstance(limit, str) else {"slots": number}

    def work(limiter, number):
        with limiter.hold(cost=some(number), timeout=LEASE / 2):
            done.append(number)  # before the next one is served

    done: list[int] = []
    held = limiters[0].acquire(cost=some(1))
    threads = [threading.Thread(target=work, args=(limiters[2 - number], number)) for number in (2, 1)]
    for standing, thread in enumerate(threads, 1):
        thread.start()
        eventually(
            lambda standing=standing: limiters[0].peek().waiting == standing, "one more waiter in the queue"
        )
    time.sleep(0.1)
    assert calls_while_nothing_happens(valkey) < 10
    begin = time.monotonic()
    held.complete()
    for thread in threads:
        thread.join(LEASE)
    assert done == [2, 1]
    assert time.monotonic() - begin < SOON_ENOUGH


@pytest.mark.realtime
def test_a_waiter_for_a_reservation_does_not_poll_all_the_time(engines, valkey, name):
    """It needs only the metric that promises times, and all slots that may be promised are."""
    limiter = Limiter({"pace": Spacing(1.5, max_reserved=0), "rest": "100/s"}, name=name, engine=engines())
    limiter.acquire(cost={"rest": 0})
    begin = time.monotonic()
    thread = threading.Thread(target=lambda: limiter.acquire(cost={"rest": 0}, timeout=LEASE / 2))
    thread.start()
    eventually(lambda: limiter.peek().waiting, "a waiter in the queue")
    time.sleep(0.1)
    assert calls_while_nothing_happens(valkey) < 10
    thread.join(LEASE)
    assert time.monotonic() - begin < SOON_ENOUGH


def test_a_visit_that_is_due_while_releases_travel_is_not_left_for_the_next_round(engines, name):
    """The worker looks for releases every millisecond, and for all else every 20, also in its last hasty round."""
    engine = engines()
    limiter = Limiter("1 concurrent", name=name, engine=engine)
    permit = limiter.acquire()
    [ledger] = limiter._shared.ledgers.registry.ledgers.values()
    worker = engine.worker
    worker.stopped = True
    worker.wake()
    eventually(lambda: worker._thread is None, "the end of the worker's thread")
    worker.stopped = False
    visits = []

    def visit(ledger, now):
        visits.append(ledger)
        ledger.visited = now

    worker.visit = visit

    class Rounds:
        """In the place of the event that ends the waits: in the last hasty round, a visit becomes due."""

        hasty = 0

        def wait(self, seconds):
            if seconds > SOON:
                worker.stopped = True
                return False
            self.hasty += 1
            if self.hasty == 1:
                engine.deferred.discard(ledger)
            if self.hasty == ALERT:
                visits.clear()
                ledger.visited = 0
                return True
            return False

        def set(self): ...

    before, worker._wake = worker._wake, Rounds()
    worker.ledgers.add(ledger)
    engine.deferred.add(ledger)
    worker._thread = threading.current_thread()
    worker._keep()
    assert worker._wake.hasty >= ALERT
    assert visits == [ledger]
    worker._wake, worker.stopped = before, False
    permit.complete()


@pytest.mark.parametrize("moment", ["looked", "concludes"])
def test_a_holder_that_comes_while_the_worker_looks_is_tracked(engines, name, moment):
    """The worker drops ledgers without waiters and holders; a caller may come right then, to a tracked ledger."""
    engine = engines()
    limiter = Limiter("1 concurrent", name=name, engine=engine)
    limiter.acquire().complete()
    [ledger] = limiter._shared.ledgers.registry.ledgers.values()
    eventually(lambda: not ledger.busy and not engine.deferred, "a ledger at rest")
    held: list[Any] = []

    def come(now):
        if now == moment and not held and threading.current_thread() is engine.worker._thread:
            held.append(limiter.acquire())

    class Ledgers(set):  # type: ignore[type-arg]
        """In the place of the worker's own: a holder comes when the worker has looked, or while it concludes."""

        def __iter__(self):
            yield from list(set.__iter__(self))
            come("looked")

        def discard(self, ledger):
            come("concludes")
            set.discard(self, ledger)

    engine.worker.ledgers = Ledgers([ledger])
    engine.worker.wake()
    eventually(lambda: held, "a holder")
    eventually(lambda: ledger in engine.worker.ledgers, "a worker that tracks it")
    held[0].complete()


def test_a_waiter_of_a_new_ledger_is_not_forgotten_with_those_of_the_old_one(engines, name):
    """Two batchers hear of the loss at the same time, and a waiter of one of them stands in the new queue by then."""
    limiter = Limiter("1 concurrent", name=name, engine=engines())
    ledger = limiter._shared.ledgers.registry.ledger((None,))
    old, new = Acquire(ledger, (1,), WAIT), Acquire(ledger, (1,), WAIT)
    for number, (acquire, epoch) in enumerate([(old, b"old"), (new, b"new")], 1):
        acquire.ticket, acquire.epoch = number, epoch
    ledger.standing[1] = old
    old.waker = Waker(lambda: ledger.standing.setdefault(2, new))
    ledger.forget_promises(b"new")
    assert old.void
    assert not new.void
    assert ledger.standing == {2: new}
    ledger.standing.clear()


class Waker:
    def __init__(self, wake):
        self.wake = wake


@pytest.mark.realtime
def test_a_user_that_may_not_subscribe_polls_instead_and_keeps_its_connections(valkey, name):
    """A refused subscription is an answer: nothing is wrong with the connections that send commands."""
    admin = valkey.client()
    admin.execute_command("ACL SETUSER mute on >secret ~* +@all resetchannels")
    engine = Engine(read_address(f"redis://mute:secret@{valkey.url.partition('://')[2]}?lease=1.5"))
    limiter = Limiter("1 concurrent", name=name, engine=engine)
    try:
        held = limiter.acquire()
        got = []
        thread = threading.Thread(target=lambda: got.append(limiter.acquire(timeout=LEASE)))
        thread.start()
        eventually(lambda: limiter.peek().waiting == 1, "one waiter in the queue")
        before = admin.info("stats")["total_connections_received"]
        time.sleep(1.5)
        assert admin.info("stats")["total_connections_received"] - before <= 3
        held.complete()
        thread.join(LEASE)
        got[0].complete()
    finally:
        engine.close()
        admin.acl_deluser("mute")
