# mypy: disable-error-code="attr-defined"
"""Those who stand in the queue are called in time, also when all is quiet and when messages overtake answers."""

from __future__ import annotations

import threading
import time

import pytest
from tests.redis.servers import eventually

from headway import Limiter
from headway.engines.redis.address import read_address
from headway.engines.redis.engine import Engine
from headway.engines.redis.keeper import ALERT, SOON

LEASE = 60
"""Seconds: a third of it is how long whoever is not called would be left."""
SOON_ENOUGH = 10


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
def test_who_waits_for_several_limits_is_not_left_when_nobody_else_comes(engines, name):
    """When it came, somebody was out, for nobody knew how long. Then it only waits for a window, and all is quiet."""
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
    eventually(lambda: limiter.peek().waiting == 3, "three who stand")
    begin = time.monotonic()
    held.complete()
    for thread in threads:
        thread.join(LEASE)
    assert len(granted) == 3
    assert granted[-1] - begin < SOON_ENOUGH


@pytest.mark.realtime
@pytest.mark.parametrize("limit", ["1 concurrent; 1 per 300ms", "1 concurrent"])
def test_a_message_that_overtakes_the_answer_is_not_lost(engines, valkey, name, limit):
    """That its turn has come, or that it comes sooner, may be heard before the answer that it has to wait at all."""
    holder = Limiter(limit, name=name, engine=engines())
    engine = engines()
    waiter = Limiter(limit, name=name, engine=engine)
    engine.keeper.listen()
    eventually(lambda: valkey.client().pubsub_numsub(engine.wake)[0][1] == 1, "an ear")
    held = holder.acquire()
    stand = engine.wait_for

    def stand_late(ask):
        held.complete()
        eventually(lambda: ask.ticket in engine._early, "the message")
        stand(ask)

    engine.wait_for = stand_late
    begin = time.monotonic()
    waiter.acquire(timeout=LEASE / 2).complete()
    assert time.monotonic() - begin < SOON_ENOUGH
    assert not engine._early


@pytest.mark.realtime
def test_an_end_that_was_refused_is_said_again_soon(engines, valkey, make_proxy, name):
    """One that arrives too late to serve the queue is refused, and nobody waits for the answer: the keeper reads it."""
    proxy = make_proxy(valkey)
    holder = Limiter("1 concurrent", name=name, engine=engines(proxy), engine_timeout=5)
    waiter = Limiter("1 concurrent", name=name, engine=engines())
    held = holder.acquire()
    got = []
    thread = threading.Thread(target=lambda: got.append(waiter.acquire(timeout=LEASE / 2)))
    thread.start()
    eventually(lambda: waiter.peek().waiting == 1, "one who stands")
    eventually(lambda: holder._engine.keeper._asleep, "a keeper that sleeps")
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
    eventually(lambda: valkey.client().pubsub_numsub(engine.wake)[0][1] == 1, "an ear")
    time.sleep(0.2)  # it asks once when it can hear
    held.complete()
    eventually(lambda: holder.peek().waiting == 0, "the grant")
    time.sleep(1)
    assert not got
    engine.keeper.visit_all()
    thread.join(LEASE)
    late = got[0].expires_in
    got[0].complete()
    with waiter.hold() as permit:
        assert late < permit.expires_in - 0.9


def test_who_is_asked_after_while_ends_travel_is_not_left_for_the_next_round(engines, name):
    """The keeper looks for ends every millisecond, and for the rest every 20: also if it rests after this one."""
    engine = engines()
    limiter = Limiter("1 concurrent", name=name, engine=engine)
    permit = limiter.acquire()
    [account] = limiter._spec.accounts.values()
    keeper = engine.keeper
    keeper.stopped = True
    keeper.wake()
    eventually(lambda: keeper._thread is None, "the end of the keeper's thread")
    keeper.stopped = False
    visits = []

    def visit(account, now):
        visits.append(account)
        account.visited = now

    keeper.visit = visit

    class Rounds:
        """In the place of the event that ends the waits: in the last round of haste, somebody is asked after."""

        hasty = 0

        def wait(self, seconds):
            if seconds > SOON:
                keeper.stopped = True
                return False
            self.hasty += 1
            if self.hasty == 1:
                engine.deferred.discard(account)
            if self.hasty == ALERT:
                visits.clear()
                account.visited = 0
                return True
            return False

        def clear(self): ...

        def set(self): ...

    before, keeper._wake = keeper._wake, Rounds()
    keeper.accounts.add(account)
    engine.deferred.add(account)
    keeper._keep()
    assert keeper._wake.hasty >= ALERT
    assert visits == [account]
    keeper._wake, keeper.stopped = before, False
    permit.complete()
