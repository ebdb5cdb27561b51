"""Tasks that are cancelled at any moment, on one loop or several, while connections fail or the ledger is lost."""

import asyncio
import threading

import pytest
from tests.redis.cancellation import STORMS, Storm, run, settled

from headway import Limiter, Permit, RateLimited
from waiting import NEVER

pytestmark = pytest.mark.realtime


@pytest.fixture
def proxy(valkey, make_proxy):
    return make_proxy(valkey)


@pytest.mark.parametrize("kind", STORMS)
def test_what_the_cancelled_were_granted_goes_back(proxy, name, kind):
    """Before they are sent, while queued, under way, standing, sleeping, or with the answer there."""
    limiter = Limiter(STORMS[kind], name=name, engine=proxy.url, engine_timeout=5)
    storm = Storm(kind, limiter)
    proxy.delay(answers=0.001)
    run(storm.rage(250))
    assert storm.errors == []
    assert len(storm.kept) == storm.ended > 0
    proxy.heal()
    settled(limiter, kind, storm)


@pytest.mark.parametrize("kind", ["window", "window with a remote", "concurrency", "metrics"])
def test_the_same_while_connections_fail(valkey, proxy, name, kind):
    """Connections are cut, answers dropped after the server acted, scripts forgotten."""
    limiter = Limiter(STORMS[kind], name=name, engine=proxy.url, engine_timeout=5)
    storm = Storm(kind, limiter)
    client = valkey.client()

    async def vandal(turn):
        what = [
            proxy.cut,
            lambda: proxy.drop_answers(3, only=b"EVALSHA"),
            client.script_flush,
            lambda: client.client_kill_filter(_type="normal", skipme=True),
        ]
        await asyncio.to_thread(what[turn // 40 % 4])

    run(storm.rage(300, vandal))
    assert len(storm.kept) == storm.ended > 0
    proxy.heal()
    settled(limiter, kind, storm)


@pytest.mark.parametrize(("kind", "on_loss"), [("concurrency", "quarantine"), ("spacing", "trust")])
def test_a_ledger_is_lost_while_tasks_come_and_go(valkey, name, kind, on_loss):
    limiter = Limiter(
        STORMS[kind], name=name, engine=f"{valkey.url}?lease=0.6", engine_timeout=5, on_ledger_loss=on_loss
    )
    storm = Storm(kind, limiter)
    client = valkey.client()

    async def vandal(turn):
        if turn // 40 % 3 == 1:
            await asyncio.to_thread(client.flushall)

    run(storm.rage(250, vandal))
    assert storm.errors == []
    settled(limiter, kind, storm)


@pytest.mark.parametrize("kind", ["window", "concurrency"])
def test_one_loop_after_another_with_commands_under_way(proxy, name, kind):
    limiter = Limiter(STORMS[kind], name=name, engine=f"{proxy.url}?lease=300", engine_timeout=5)
    storm = Storm(kind, limiter)

    proxy.delay(answers=0.004)
    for _ in range(8):
        run(storm.leave())
    proxy.heal()
    settled(limiter, kind, storm)


@pytest.mark.parametrize("kind", ["window", "concurrency", "metrics"])
def test_two_loops_and_threads_at_once(valkey, name, kind):
    limiter = Limiter(STORMS[kind], name=name, engine=valkey.url, engine_timeout=5, max_waiting=20)
    storms = [Storm(kind, limiter, number) for number in range(2)]
    failed: list[BaseException] = []
    used: list[Permit] = []

    def rage(storm):
        try:
            asyncio.run(storm.rage(150))
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    def work():
        for _ in range(60):
            try:
                used.append(limiter.acquire(timeout=0.05))
                used[-1].complete()
            except RateLimited:
                pass

    threads = [threading.Thread(target=rage, args=(storm,)) for storm in storms]
    threads += [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(NEVER)
    assert failed == []
    storms[0].kept += [*storms[1].kept, *used]
    settled(limiter, kind, storms[0])
