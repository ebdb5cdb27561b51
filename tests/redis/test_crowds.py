# mypy: disable-error-code="attr-defined, union-attr"
"""A crowd on one ledger: no waiter is failed by the others, and no command costs more the more of them wait."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from contextlib import suppress
from struct import pack
from typing import Any

import pytest
from tests.redis.cancellation import run
from tests.redis.servers import eventually

from headway import EngineUnavailable, Limiter
from headway.engines.redis.client.batching import FEW, thread_batcher
from headway.engines.redis.client.requests import Acquire, PollQueue, Release, Request, Withdraw
from headway.engines.redis.engine import Engine
from headway.engines.redis.net.address import read_address
from headway.engines.redis.script.protocol import GRANTED, STANDING, WAIT
from headway.outcome import Outcome
from waiting import wait_until

SHORT = 1.0
"""Seconds: an `engine_timeout` that a busy machine keeps, and that a crowd would have broken."""
README = "10/s; 500/minute; 5 concurrent"
LIMITS: dict[str, Any] = {
    "one": "1 concurrent",
    "several": "100/hour; 500/day; 1 concurrent",
    "metrics": {"calls": "100/hour", "slots": "1 concurrent"},
}


def queue_keys(name):
    return [f"headway:{{{name}}}:{part}" for part in "qwhb"]


# -- tasks and threads ---------------------------------------------------------------------------------------


@pytest.mark.realtime
@pytest.mark.parametrize(
    "limit", [README, {"calls": "10/s", "slots": "5 concurrent"}], ids=["one key", "metrics"]
)
def test_300_tasks_wait_without_an_error(server, name, limit):
    limiter = Limiter(limit, name=name, engine=server.url, engine_timeout=SHORT)
    served: list[int] = []

    async def call(number):
        async with limiter:
            served.append(number)

    async def main():
        tasks = [asyncio.create_task(call(number)) for number in range(300)]
        done, waiting = await asyncio.wait(tasks, timeout=3.5)
        assert [task.exception() for task in done if task.exception()] == []
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(main())
    # Four periods at most, and never more than ten in each.
    assert 10 < len(served) <= 40
    assert sorted(served) == list(range(len(served)))
    eventually(lambda: limiter.peek().waiting == 0 and limiter.peek().in_flight == 0, "an empty queue")
    eventually(lambda: not server.client().exists(*queue_keys(name)), "nothing left of it")


@pytest.mark.realtime
def test_400_threads_wait_without_an_error(valkey, name):
    """Each of them is told of its own answer; time spent behind other threads is not the engine's."""
    limiter = Limiter("1000/s; 5 concurrent", name=name, engine=valkey.url, engine_timeout=SHORT)
    limiter.peek()
    served, troubles, begin = [], [], threading.Event()

    def work(number):
        begin.wait()
        try:
            with limiter:
                served.append(number)
        except BaseException as error:  # noqa: BLE001 - looked at below
            troubles.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(400)]
    for thread in threads:
        thread.start()
    begin.set()
    for thread in threads:
        thread.join(60)
    assert troubles == []
    assert len(served) == 400


@pytest.mark.realtime
@pytest.mark.parametrize("connected", [False, True])
def test_a_loop_that_is_busy_for_longer_than_the_time_out_fails_no_call(valkey, name, connected):
    """The answer is there when the loop looks again."""
    limiter = Limiter("1000/s", name=name, engine=valkey.url, engine_timeout=SHORT)

    async def main():
        if connected:
            await limiter.acquire_async()
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(3)]
        for _ in range(4):
            await asyncio.sleep(0)
            time.sleep(1.5 * SHORT)  # noqa: ASYNC251 - as a program does that has much to do
        await asyncio.gather(*tasks)

    run(main())


@pytest.mark.realtime
def test_a_loop_that_is_busy_at_the_end_of_the_time_out_does_not_wait_for_another_one():
    """A server that accepts and says nothing has had its time, although the loop was late to notice."""
    tried = []

    async def main(limiter):
        task = asyncio.create_task(limiter.try_acquire_async())
        await asyncio.sleep(1.9)
        time.sleep(0.3)  # noqa: ASYNC251 - as a collector does that has much to look through
        with pytest.raises(EngineUnavailable):
            await task

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept():
            with suppress(OSError):
                while True:
                    tried.append(listening.accept()[0])

        accepting = threading.Thread(target=accept)
        accepting.start()
        port = listening.getsockname()[1]
        limiter = Limiter("1/s", name="mute", engine=f"redis://127.0.0.1:{port}", engine_timeout=2)
        run(main(limiter))
        attempts = len(tried)
        listening.shutdown(socket.SHUT_RDWR)
    accepting.join(60)
    for connection in tried:
        connection.close()
    assert attempts == 1


@pytest.mark.realtime
def test_many_keys_at_once_are_asked_for_some_at_a_time(valkey, name):
    """A time-out begins when a command is sent, so no more are sent than the server can answer in time."""
    limiter = Limiter("10/s; 5 concurrent", name=name, engine=valkey.url, engine_timeout=5)
    most = 0

    async def call(number):
        async with limiter.hold(f"key {number}"):
            pass

    async def watch():
        nonlocal most
        while True:
            for connection in limiter._shared._engine.pools()[0]._wires.values():
                most = max(most, len(getattr(connection, "pending", ())))
            await asyncio.sleep(0)

    async def main():
        watching = asyncio.create_task(watch())
        await asyncio.gather(*(call(number) for number in range(2000)))
        watching.cancel()

    run(main())
    assert 1 < most <= 64


@pytest.mark.realtime
def test_places_that_many_give_back_at_once_travel_together(valkey, name):
    limiter = Limiter("1 concurrent", name=name, engine=valkey.url, engine_timeout=5)
    held = limiter.acquire()

    async def main():
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(1000)]
        await asyncio.to_thread(wait_until, lambda: limiter.peek().waiting == 1000, "a thousand waiters")
        before = scripts(valkey)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(wait_until, lambda: not valkey.client().exists(*queue_keys(name)), "no queue")
        return scripts(valkey) - before

    assert run(main()) < 500
    held.complete()
    limiter.acquire(timeout=10).complete()


def scripts(server):
    return server.client().info("commandstats")["cmdstat_evalsha"]["calls"]


# -- what a command costs ------------------------------------------------------------------------------------


class Bench:
    """A ledger whose queue has waiters, and how many calls a script makes for a command."""

    def __init__(self, limiter, server):
        self.client = server.client()
        self.ledger = limiter._shared.ledgers.registry.ledger(
            (None,) * (2 if limiter._shared.ledgers.registry.metrics else 1)
        )
        self.width = len(self.ledger.rules)
        self.standing: list[Acquire] = []

    def send(self, *requests):
        """How many calls the scripts make for these requests."""
        batcher = thread_batcher(self.ledger)
        self.client.config_resetstat()
        batcher.queue.extend(requests[1:])
        batcher.send(requests[0])
        stats = self.client.info("commandstats")
        return sum(
            what["calls"]
            for name, what in stats.items()
            if name not in ("cmdstat_info", "cmdstat_config|resetstat")
        )

    def asks(self, number):
        return [Acquire(self.ledger, (1,) * self.width, WAIT) for _ in range(number)]

    def join(self, number):
        for _ in range(number // FEW):
            some = self.asks(FEW)
            self.send(*some)
            self.standing += [acquire for acquire in some if acquire.verdict == STANDING]

    def costs(self):
        """The least of several times, as others may call something meanwhile."""
        return [min(calls) for calls in zip(*(self._costs() for _ in range(3)), strict=True)]

    def _costs(self):
        """Calls for a waiter that joins, for three that leave (last, middle, first), and for a poll."""
        joins = self.send(*self.asks(1))
        some = [self.standing.pop(pool) for pool in (-1, len(self.standing) // 2, 0)]
        for acquire in some:
            self.ledger.standing.pop(acquire.ticket, None)
        return joins, *(self.send(Withdraw(acquire)) for acquire in some), self.send(PollQueue(self.ledger))


@pytest.mark.parametrize("kind", LIMITS)
def test_a_command_does_not_cost_more_the_more_wait(valkey, name, kind):
    limiter = Limiter(LIMITS[kind], name=name, engine=f"{valkey.url}?lease=3600", engine_timeout=5)
    held = limiter.acquire()
    limiter._shared._engine.worker.stopped = True  # what it says would be counted, too
    bench = Bench(limiter, valkey)
    try:
        bench.join(3 * FEW)
        few = bench.costs()
        bench.join(60 * FEW)
        many = bench.costs()
        assert all(later <= earlier + 2 for earlier, later in zip(few, many, strict=True)), (few, many)
        assert max(many) < 60
    finally:
        bench.ledger.standing.clear()
        limiter._shared._engine.worker.stopped = False
        held.complete()


def test_waiters_of_other_keys_do_not_make_a_command_cost_more(valkey, name):
    """All keys of a limiter with metrics share a queue. Each waits for a ledger of its own, and all for one more."""
    limits = {"all": "2 concurrent", "own": "1 concurrent"}
    limiter = Limiter(limits, name=name, engine=f"{valkey.url}?lease=3600", engine_timeout=5)
    held = [limiter.acquire({"own": f"holder {number}"}) for number in range(2)]
    limiter._shared._engine.worker.stopped = True
    ledgers: list[Any] = []
    asks: list[Acquire] = []

    def come(number):
        for key in range(number):
            ledger = limiter._shared.ledgers.registry.ledger((None, f"{len(asks)}.{key}"))
            ledgers.append(ledger)
            acquire = Acquire(ledger, (1, 1), WAIT)
            thread_batcher(ledger).send(acquire)
            assert acquire.verdict == STANDING
            asks.append(acquire)

    bench = Bench.__new__(Bench)
    bench.client, bench.width = valkey.client(), 2

    def costs():
        bench.ledger = limiter._shared.ledgers.registry.ledger((None, f"newcomer {len(asks)}"))
        new = bench.asks(1)
        return bench.send(*new), bench.send(PollQueue(bench.ledger)), bench.send(Withdraw(new[0]))

    try:
        come(30)
        few = costs()
        come(500)
        many = costs()
        assert all(later <= earlier + 2 for earlier, later in zip(few, many, strict=True)), (few, many)
    finally:
        for ledger in ledgers:
            ledger.standing.clear()
        limiter._shared._engine.worker.stopped = False
        for permit in held:
            permit.cancel()


def test_one_script_serves_some_and_the_rest_is_served_soon(valkey, name):
    """A thousand permits come back at once, and a thousand wait: no script hands out all of them."""
    limiter = Limiter("1000 concurrent", name=name, engine=valkey.url, engine_timeout=5)
    held = limiter.acquire(cost=1000)
    waiters = Limiter("1000 concurrent", name=name, engine=Engine(read_address(valkey.url)), engine_timeout=5)

    async def main():
        tasks = [asyncio.create_task(waiters.acquire_async()) for _ in range(1000)]
        await asyncio.to_thread(wait_until, lambda: limiter.peek().waiting == 1000, "a thousand waiters")
        ledger = held._decision.ledger
        bench = Bench.__new__(Bench)
        bench.client, bench.ledger = valkey.client(), ledger
        before = time.monotonic()
        calls = await asyncio.to_thread(bench.send, Release(held._decision, Outcome.CANCEL))
        permits = await asyncio.wait_for(asyncio.gather(*tasks), 30)
        for permit in permits:
            permit.complete()
        return calls, time.monotonic() - before

    try:
        calls, took = run(main())
        assert calls < 1500  # if all were served: more than three for each
        assert took < 10
    finally:
        held._end = Outcome.CANCEL
        waiters._shared._engine.close()


# -- order ---------------------------------------------------------------------------------------------------


def stand(limiter, keys, costs):
    ledger = limiter._shared.ledgers.registry.ledger(keys)
    acquire = Acquire(ledger, costs, WAIT)
    thread_batcher(ledger).send(acquire)
    return acquire


def granted(asks):
    """Which of them are granted, as soon as their processes were told."""
    time.sleep(0.05)
    return [number for number, acquire in enumerate(asks) if acquire.verdict == GRANTED]


@pytest.mark.realtime
def test_waiters_that_share_a_ledger_are_served_in_the_order_of_arrival_whatever_else_they_need(valkey, name):
    """Ledgers: `all` has one permit, `own` one for each key."""
    limiter = Limiter({"all": "1 concurrent", "own": "1 concurrent"}, name=name, engine=valkey.url)
    first = stand(limiter, (None, "a"), (1, 1))
    assert first.verdict == GRANTED
    asks = [stand(limiter, (None, key), (1, 1)) for key in "abcabc"]
    assert {acquire.verdict for acquire in asks} == {STANDING}
    last = first
    for number in range(6):
        assert granted(asks) == list(range(number))
        last.give_back()
        eventually(lambda number=number: asks[number].verdict == GRANTED, f"number {number}")
        last = asks[number]
    last.give_back()


@pytest.mark.realtime
def test_a_waiter_that_another_ledger_holds_up_lets_others_pass(valkey, name):
    """`a` is out for long. Its waiters do not keep `all` from later waiters for `b`; a newcomer for `a` is behind."""
    limiter = Limiter({"all": "2 concurrent", "own": "1 concurrent"}, name=name, engine=valkey.url)
    held, other = stand(limiter, (None, "a"), (1, 1)), stand(limiter, (None, "b"), (1, 1))
    first, second = stand(limiter, (None, "a"), (1, 1)), stand(limiter, (None, "b"), (1, 1))
    assert (first.verdict, second.verdict) == (STANDING, STANDING)
    other.give_back()
    eventually(lambda: second.verdict == GRANTED, "the waiter for b")
    assert first.verdict == STANDING
    second.give_back()
    eventually(lambda: limiter.peek({"own": "b"}).in_flight == 1, "one out")
    assert not limiter.try_acquire({"own": "a"})
    held.give_back()
    eventually(lambda: first.verdict == GRANTED, "the waiter for a")
    first.give_back()


@pytest.mark.realtime
def test_a_waiter_that_needs_more_is_not_overtaken_by_one_that_needs_less_of_the_same(valkey, name):
    limiter = Limiter({"all": "3 concurrent", "own": "9 concurrent"}, name=name, engine=valkey.url)
    held = [stand(limiter, (None, "a"), (1, 1)) for _ in range(3)]
    heavy, light = stand(limiter, (None, "a"), (3, 1)), stand(limiter, (None, "b"), (1, 1))
    for acquire in held[:2]:
        acquire.give_back()
    time.sleep(0.2)
    assert (heavy.verdict, light.verdict) == (STANDING, STANDING)
    held[2].give_back()
    eventually(lambda: heavy.verdict == GRANTED, "the first waiter")
    assert light.verdict == STANDING
    heavy.give_back()
    eventually(lambda: light.verdict == GRANTED, "the second waiter")
    light.give_back()


@pytest.mark.realtime
def test_a_head_that_leaves_makes_room_for_the_waiters_behind_it(valkey, name):
    limiter = Limiter({"all": "3 concurrent", "own": "9 concurrent"}, name=name, engine=valkey.url)
    held = stand(limiter, (None, "a"), (1, 1))
    heavy = stand(limiter, (None, "a"), (3, 1))
    behind = [stand(limiter, (None, key), (1, 1)) for key in "ab"]
    assert {acquire.verdict for acquire in behind} == {STANDING}
    heavy.withdraw()
    eventually(lambda: {acquire.verdict for acquire in behind} == {GRANTED}, "both")
    for acquire in (held, *behind):
        acquire.give_back()


# -- the dead ------------------------------------------------------------------------------------------------


@pytest.mark.realtime
def test_many_waiters_of_a_process_that_died_are_passed_some_at_a_time(valkey, name):
    limiter = Limiter("1 concurrent", name=name, engine=f"{valkey.url}?lease=1.5", engine_timeout=5)
    held = limiter.acquire()
    got = []
    thread = threading.Thread(target=lambda: got.append(limiter.acquire(timeout=60)))
    thread.start()
    eventually(lambda: limiter.peek().waiting == 1, "one waiter")
    client, root = valkey.client(), f"headway:{{{name}}}"
    dead = [b"0123456789ab" + pack("<d", number) for number in range(3000)]
    client.zadd(f"{root}:q", {b"\0" + pack(">d", number) + waiter: 0 for number, waiter in enumerate(dead)})
    client.hset(f"{root}:w", mapping={waiter: pack("<dddd", 0, 2.0**52, 1, 1) for waiter in dead})
    client.config_set("slowlog-log-slower-than", 20_000)
    client.slowlog_reset()
    held.complete()
    thread.join(30)
    assert client.zcard(f"{root}:q") == 0
    got[0].complete()


# -- polling ------------------------------------------------------------------------------------------------


@pytest.mark.realtime
def test_a_process_polls_once_for_all_of_its_waiters(valkey, name):
    """They wait for time alone: no other command comes that would serve them."""
    limiter = Limiter("5 per 400ms; 1000/hour", name=name, engine=valkey.url, engine_timeout=5)

    async def main():
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(300)]
        await asyncio.sleep(0.5)
        before, served = scripts(valkey), sum(task.done() for task in tasks)
        await asyncio.sleep(2)
        calls, served = scripts(valkey) - before, sum(task.done() for task in tasks) - served
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return calls, served

    calls, served = run(main())
    assert served >= 15
    assert calls < 3 * served


@pytest.mark.realtime
def test_waiters_whose_messages_are_all_lost_are_found_by_polls(valkey, name, monkeypatch):
    engine = Engine(read_address(f"{valkey.url}?lease=1.5"))
    limiter = Limiter("200 concurrent", name=name, engine=engine, engine_timeout=5)
    holder = Limiter("200 concurrent", name=name, engine=valkey.url)
    held = holder.acquire(cost=200)
    monkeypatch.setattr(engine, "call", lambda ticket, call: None)

    async def main():
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(200)]
        await asyncio.to_thread(wait_until, lambda: holder.peek().waiting == 200, "all of them")
        held.complete()
        for permit in await asyncio.wait_for(asyncio.gather(*tasks), 20):
            permit.complete()

    try:
        run(main())
    finally:
        engine.close()


def test_two_polls_that_are_under_way_together_find_the_same_grant(valkey, name, monkeypatch):
    """The answer to the first is late: the second must not find that its waiter is unknown, and send it to the end."""
    limiter = Limiter("1 concurrent", name=name, engine=f"{valkey.url}?lease=60")
    monkeypatch.setattr(limiter._shared._engine, "call", lambda ticket, call: None)
    ledger, held = limiter._shared.ledgers.registry.ledger((None,)), limiter.acquire()
    limiter._shared._engine.worker.stopped = True
    acquire = stand(limiter, (None,), (1,))
    held.complete()
    batcher = thread_batcher(ledger)
    eventually(lambda: limiter.peek().waiting == 0, "the grant")
    batcher.send(Request(ledger, PollQueue(ledger).command))
    batcher.send(PollQueue(ledger))
    assert acquire.verdict == GRANTED
    assert not acquire.void
    acquire.give_back()
    eventually(lambda: limiter.peek().in_flight == 0, "its end")


def test_every_waiter_is_asked_after_now_and_then(valkey, name):
    limiter = Limiter("1 concurrent", name=name, engine=valkey.url)
    ledger = limiter._shared.ledgers.registry.ledger((None,))
    asks = {number: Acquire(ledger, (1,), WAIT) for number in range(1, 301)}
    for ticket, acquire in asks.items():
        acquire.ticket = ticket
    ledger.standing.update(asks)
    seen = set()
    for _ in range(12):
        some = [acquire.ticket for acquire in PollQueue(ledger).asks]
        assert some[:32] == list(range(1, 33))
        assert len(some) == len(set(some)) <= 64
        seen.update(some)
    assert seen == set(asks)
    ledger.standing.clear()


@pytest.mark.realtime
def test_waiters_of_a_process_without_a_background_worker_poll_by_themselves(valkey, name, monkeypatch):
    """It may have no more threads; the message is not heard either."""
    limiter = Limiter("1 concurrent", name=name, engine=f"{valkey.url}?lease=0.9", engine_timeout=5)
    start = threading.Thread.start

    def refuse(self):
        if self.name.startswith("headway"):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    first = limiter.acquire()

    async def main():
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(3)]
        await asyncio.sleep(0.1)
        first.complete()
        for done in itertools.islice(asyncio.as_completed(tasks, timeout=20), 3):
            (await done).complete()

    run(main())
