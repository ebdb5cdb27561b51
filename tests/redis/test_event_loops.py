# mypy: disable-error-code="attr-defined, union-attr"
"""Loops that end in the middle of something, connections that fail under many tasks.

Afterwards the ledger has what is still held, and the loop reports none of the engine's own tasks.
"""

import asyncio
import contextlib
import gc
import time
from contextlib import suppress

import pytest
from tests.redis.cancellation import HELD, MANY, run, turns

from headway import Limiter, Window, redis_engine
from headway.errors import EngineUnavailable
from waiting import NEVER, SOON, wait_until

pytestmark = pytest.mark.realtime


@pytest.fixture
def proxy(valkey, make_proxy):
    return make_proxy(valkey)


def others():
    return asyncio.all_tasks() - {asyncio.current_task()}


# -- loops -----------------------------------------------------------------------------------------------


def test_all_ends_of_a_turn_are_said(valkey, name):
    """More than one command takes, and no question comes to travel with."""
    limiter = Limiter(HELD, name=name, engine=valkey.url)
    watch = Limiter(HELD, name=name, engine=f"{valkey.url}?lease=6")

    async def main():
        for permit in await asyncio.gather(*(limiter.acquire_async() for _ in range(300))):
            permit.complete()
        await asyncio.to_thread(wait_until, lambda: watch.peek().in_flight == 0, "all ends")

    run(main())


def test_loops_that_have_ended_are_forgotten(valkey, name):
    limiter = Limiter("1000/minute", name=name, engine=valkey.url)
    for _ in range(10):
        run(limiter.acquire_async())
    (pool,) = limiter._shared._engine.pools()
    assert len(pool._wires) == 1
    assert len(limiter._shared.ledgers.registry.ledger((None,)).batchers) == 1


def test_a_clean_up_at_the_end_of_the_loop_may_acquire(valkey, name):
    limiter = Limiter("1000/minute", name=name, engine=valkey.url)
    cleaned = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)  # `asyncio.run` has cancelled every task by now
            cleaned.append(await limiter.acquire_async())

    async def main():
        await limiter.acquire_async()
        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await turns(2)
        return tasks

    run(main())
    assert len(cleaned) == 3


def test_all_tasks_has_none_of_the_engine(valkey, name):
    limiter = Limiter("1000/minute", name=name, engine=valkey.url)

    async def main():
        await limiter.acquire_async()
        await asyncio.wait_for(asyncio.gather(*others()), NEVER)

    run(main())


def test_a_batcher_goes_on_when_a_command_could_not_even_be_made(valkey, name, monkeypatch):
    """Such as in a cluster, when the engine cannot start a thread to read the map."""
    limiter = Limiter("1000/minute", name=name, engine=valkey.url)

    def pool_of(ledger):
        raise RuntimeError("can't start new thread")

    async def main():
        await limiter.acquire_async()
        with monkeypatch.context() as patch:
            patch.setattr(limiter._shared._engine, "pool_of", pool_of)
            outcomes = await asyncio.gather(
                *(limiter.acquire_async() for _ in range(3)), return_exceptions=True
            )
        assert {type(outcome) for outcome in outcomes} == {RuntimeError}
        async with asyncio.timeout(NEVER):
            assert await limiter.acquire_async()

    run(main())


def test_a_batcher_goes_on_when_all_tasks_were_cancelled(proxy, name):
    """The command is sent again in a task. A task that is cancelled before it began runs none of its code."""
    limiter = Limiter(Window(10, per=60), name=name, engine=proxy.url, engine_timeout=2)

    async def main():
        await limiter.acquire_async()
        batcher = limiter._shared.ledgers.registry.ledger((None,)).last_loop_batcher
        for _ in range(3):
            proxy.drop_answers(1, only=b"EVALSHA")
            asking = asyncio.create_task(limiter.acquire_async())
            await turns(2)
            while batcher.under_way is not None:
                await turns(1)
            for task in others():
                task.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
        proxy.heal()
        async with asyncio.timeout(NEVER):
            assert await limiter.try_acquire_async()
        limiter._shared._engine.worker.wake()
        await asyncio.to_thread(wait_until, lambda: limiter.peek().remaining == 8, "the other three")

    run(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # its transport is as open as the loop left it
def test_a_loop_that_is_closed_in_the_middle_of_a_command(proxy, name):
    """Nothing awaits its tasks any more. What they were granted comes back when the next loop asks."""
    limiter = Limiter(Window(10, per=60), name=name, engine=proxy.url, engine_timeout=2)
    complaints: list[str] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(repr(context.get("task"))))
    loop.run_until_complete(limiter.acquire_async())
    proxy.delay(answers=0.2)
    tasks = [loop.create_task(limiter.acquire_async(), name="asker") for _ in range(5)]
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    del loop, tasks
    proxy.heal()
    assert run(limiter.try_acquire_async())
    limiter._shared._engine.worker.wake()
    wait_until(lambda: limiter.peek().remaining == 8, "the grants whose answers were lost")
    gc.collect()
    assert [complaint for complaint in complaints if "asker" not in complaint] == []


# -- time-outs -------------------------------------------------------------------------------------------


@pytest.fixture
def two(valkey, proxy):
    """two(name): a patient limiter and an impatient one, on one engine."""
    engine = redis_engine(valkey.client(port=proxy.port), timeout=NEVER)
    yield lambda name: (
        Limiter("1000/minute", name=f"{name}-patient", engine=engine, engine_timeout=NEVER),
        Limiter("1000/minute", name=f"{name}-impatient", engine=engine, engine_timeout=0.1),
    )
    engine.close()


async def answered(limiter):
    """Acquire; on a busy machine an answer may take longer than the impatient one waits."""
    async with asyncio.timeout(NEVER):
        while True:
            with contextlib.suppress(EngineUnavailable):
                return await limiter.acquire_async()


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("first", ["patient", "impatient"])
def test_each_limiter_waits_for_its_own_time_out(valkey, two, name, connected, first):
    """The server is stopped. The impatient one hears of it soon, the other gets its answer when it goes on."""
    patient, impatient = two(name)

    async def impatience():
        begin = time.monotonic()
        with pytest.raises(EngineUnavailable):
            await impatient.acquire_async()
        assert 0.09 < time.monotonic() - begin < SOON

    async def main():
        if connected:
            await asyncio.gather(patient.acquire_async(), answered(impatient))
        valkey.stop()
        calls = [patient.acquire_async(), impatience()]
        tasks = [asyncio.create_task(call) for call in (calls if first == "patient" else reversed(calls))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.2)
        valkey.cont()
        await asyncio.gather(*tasks)
        assert await answered(impatient)

    try:
        run(main())
    finally:
        valkey.cont()


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("asked_by", ["thread", "task"])
def test_the_time_is_that_of_the_limiter_and_not_of_the_engine(valkey, name, asked_by, connected):
    client = valkey.client()
    for engine_time, own_time in ((NEVER, 0.2), (0.05, 0.2)):
        engine = redis_engine(client, timeout=engine_time)
        limiter = Limiter("1000/minute", name=f"{name}{own_time}", engine=engine, engine_timeout=own_time)
        with asyncio.Runner() as runner:
            acquire = (
                limiter.acquire if asked_by == "thread" else lambda of=limiter: runner.run(of.acquire_async())
            )
            if connected:
                acquire()
            valkey.stop()
            try:
                begin = time.monotonic()
                with pytest.raises(EngineUnavailable):
                    acquire()
                assert 0.19 < time.monotonic() - begin < SOON
            finally:
                valkey.cont()
            assert acquire()
        engine.close()


def test_an_impatient_limiter_takes_no_other_limiters_connection(proxy, two, name):
    """Each answer takes longer than the one waits, and not nearly as long as the other."""
    patient, impatient = two(name)
    over = asyncio.Event()

    async def nag():
        while not over.is_set():
            with pytest.raises(EngineUnavailable):
                await impatient.acquire_async()

    async def main():
        await patient.acquire_async()
        proxy.delay(answers=0.15)
        nagging = asyncio.create_task(nag())
        for _ in range(3):
            await patient.acquire_async()
        over.set()
        await nagging

    run(main())


# -- many at once ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["cut", "drop answers", "script flush", "client kill"])
def test_more_than_one_command_takes(valkey, proxy, name, what):
    """Seven hundred ask at once, while a command of them is on its way."""
    limiter = Limiter(f"{MANY}/hour", name=name, engine=proxy.url, engine_timeout=5)
    client = valkey.client()
    vandals = {
        "cut": proxy.cut,
        "drop answers": lambda: None,
        "script flush": client.script_flush,
        "client kill": lambda: client.client_kill_filter(_type="normal", skipme=True),
    }

    async def main():
        await limiter.acquire_async()
        proxy.delay(answers=0.02)
        if what == "drop answers":
            proxy.drop_answers(3, only=b"EVALSHA")
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(700)]
        # One that is closed while it is being made is a server that cannot be reached; one that is reset is not.
        for _ in range(1 if what == "client kill" else 3):
            await asyncio.sleep(0.01)
            await asyncio.to_thread(vandals[what])
        await asyncio.gather(*tasks)
        assert (await limiter.peek_async()).remaining == MANY - 701

    run(main())


def test_a_release_batched_with_an_empty_request_is_applied_once(proxy, name):
    """The answer was lost, and has no numbers in it: that does not mean that the command was not applied."""
    limiter = Limiter(Window(10, per=60), name=name, engine=proxy.url, engine_timeout=0.2)

    async def main():
        permits = await asyncio.gather(*(limiter.acquire_async() for _ in range(5)))
        await limiter.peek_async()
        proxy.drop_answers(1, only=b"EVALSHA", cut=False)
        permits.pop().cancel()
        with pytest.raises(EngineUnavailable):
            await limiter.pause_async(0)
        assert proxy.dropped == 1
        return permits

    permits = run(main())
    proxy.heal()
    worker = limiter._shared._engine.worker
    wait_until(
        lambda: worker.wake() or not (worker.unknown_outcomes or worker._has_releases()),
        "nothing left to say",
    )
    assert limiter.peek().remaining == 10 - len(permits)


def test_many_keys_on_one_connection(valkey, proxy, name):
    limiter = Limiter(f"{MANY}/hour", name=name, engine=proxy.url, engine_timeout=5)
    keys = [f"key{number}" for number in range(40)]

    async def main():
        proxy.delay(answers=0.01)
        tasks = [asyncio.create_task(limiter.acquire_async(key)) for _ in range(10) for key in keys]
        proxy.drop_answers(2, only=b"EVALSHA")
        await asyncio.sleep(0.015)
        await asyncio.to_thread(proxy.cut)
        await asyncio.sleep(0.015)
        await asyncio.to_thread(valkey.client().script_flush)
        await asyncio.gather(*tasks)
        looks = await asyncio.gather(*(limiter.peek_async(key) for key in keys))
        assert {peek.remaining for peek in looks} == {MANY - 10}

    run(main())


def test_a_connection_that_is_reset_while_it_is_made_is_made_again(valkey, name, monkeypatch):
    """asyncio may notice that only at the next write, and redis-py says it in words of its own."""
    limiter = Limiter(f"{MANY}/hour", name=name, engine=valkey.url, engine_timeout=NEVER)
    drain = asyncio.StreamWriter.drain
    resets = [ConnectionResetError("Connection lost") for _ in range(2)]

    async def lost(writer):
        await drain(writer)
        if resets:
            raise resets.pop()

    monkeypatch.setattr(asyncio.StreamWriter, "drain", lost)
    run(limiter.acquire_async())
    assert not resets


def test_a_server_that_has_become_a_replica_is_left(make_server, make_proxy, name):
    """It answers on every open connection, and refuses: no batcher asks it again and again."""
    server = make_server()
    proxy = make_proxy(server)
    limiter = Limiter(f"{MANY}/hour", name=name, engine=proxy.url, engine_timeout=8, on_ledger_loss="trust")
    client = server.client()

    async def acquire(key):
        with suppress(EngineUnavailable):
            while True:
                await limiter.acquire_async(key)

    async def main():
        await limiter.acquire_async("a")
        proxy.delay(answers=0.01)
        tasks = []
        for key in "abcdefgh":
            tasks.append(asyncio.create_task(acquire(key)))
            await asyncio.sleep(0.002)  # there is always an answer on its way
        await asyncio.sleep(0.05)
        client.replicaof("127.0.0.1", 1)
        await asyncio.gather(*tasks)
        assert client.info("errorstats")["errorstat_READONLY"]["count"] <= 4 * len(tasks)
        client.replicaof("NO", "ONE")
        assert await limiter.acquire_async("a")

    run(main())
