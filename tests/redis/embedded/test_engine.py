"""`embedded://DIR` as an engine: the first use starts a server, others share it, a dead one is started again."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import redis
from tests.redis.engine_checks import TIMEOUT, check_verbs, start_slowly
from tests.redis.servers import eventually

from headway import Limiter
from headway.errors import EngineUnavailable
from waiting import NEVER, SOON

pytestmark = pytest.mark.usefixtures("_wheel")


def server_of(folder):
    with redis.Redis(unix_socket_path=f"{folder}/server.sock") as client:
        return client.info("server")["process_id"]


@pytest.mark.realtime
def test_the_first_use_starts_a_server(connect, tmp_path):
    engine = connect(f"embedded://{tmp_path}/in/here?lease=4&namespace=shop")
    assert engine.lease_ns == 4_000_000_000
    assert not (tmp_path / "in").exists()
    check_verbs(engine)
    with redis.Redis(unix_socket_path=f"{tmp_path}/in/here/server.sock") as client:
        assert client.exists("shop:{verbs}")
    engine.close()
    assert not (tmp_path / "in/here/server.sock").exists()


@pytest.mark.realtime
def test_a_task_starts_it_without_stopping_its_loop(connect, tmp_path):
    engine = connect(f"embedded://{tmp_path}")
    limiter = Limiter("5/s", name="x", engine=engine)
    start_slowly(engine, 2)

    async def tasks():
        longest, last, done = 0.0, time.monotonic(), False

        async def watch():
            nonlocal longest, last
            while not done:
                await asyncio.sleep(0.001)
                longest, last = max(longest, time.monotonic() - last), time.monotonic()

        watching = asyncio.create_task(watch())
        await asyncio.gather(*[limiter.acquire_async(timeout=NEVER) for _ in range(4)])
        done = True
        await watching
        return longest

    assert asyncio.run(tasks()) < 1.5


@pytest.mark.slow
def test_processes_share_it(connect, tmp_path):
    uri = f"embedded://{tmp_path}"
    limiter = Limiter("3/minute", name="x", engine=connect(uri))
    assert limiter.try_acquire()
    script = f"from headway import Limiter; print(bool(Limiter('3/minute', name='x', engine={uri!r}).try_acquire()))"
    said = [
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        for _ in range(3)
    ]
    assert said == ["True\n", "True\n", "False\n"]
    assert not limiter.try_acquire()


@pytest.mark.realtime
def test_a_killed_server_is_started_again_and_has_forgotten_nothing(connect, tmp_path):
    limiter = Limiter("3/minute", name="x", engine=connect(f"embedded://{tmp_path}", 1.0), engine_timeout=1)
    assert limiter.try_acquire()
    first = server_of(tmp_path)
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: passes(limiter), "a server that was started again")
    assert server_of(tmp_path) != first
    os.kill(server_of(tmp_path), signal.SIGKILL)
    assert asyncio.run(eventually_async(limiter))
    assert not limiter.try_acquire()


def passes(limiter):
    try:
        return limiter.try_acquire()
    except EngineUnavailable:
        return None


async def eventually_async(limiter):
    for _ in range(50):
        try:
            return await limiter.try_acquire_async()
        except EngineUnavailable:
            await asyncio.sleep(0.1)
    return None


@pytest.mark.realtime
def test_a_stopped_server_is_not_waited_for(connect, tmp_path):
    limiter = Limiter("9/s", name="x", engine=connect(f"embedded://{tmp_path}", 0.2), engine_timeout=0.2)
    limiter.acquire()
    pid = server_of(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    try:
        for call in (limiter.acquire, lambda: asyncio.run(limiter.acquire_async())):
            began = time.monotonic()
            with pytest.raises(EngineUnavailable):
                call()
            assert time.monotonic() - began < SOON
    finally:
        os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: passes(limiter), "a server that goes on")


@pytest.mark.realtime
def test_many_threads_start_one(connect, tmp_path):
    limiter = Limiter(
        "100/s", name="x", engine=connect(f"embedded://{tmp_path}", TIMEOUT), engine_timeout=TIMEOUT
    )
    got = []
    threads = [threading.Thread(target=lambda: got.append(limiter.acquire(f"k{len(got)}"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(NEVER)
    assert len(got) == 8


@pytest.mark.realtime
def test_a_call_during_close_does_not_start_the_server_again(connect, tmp_path):
    engine = connect(f"embedded://{tmp_path}")
    limiter = Limiter("1000000/s", name="x", engine=engine, engine_timeout=TIMEOUT)
    limiter.acquire()
    errors: list[EngineUnavailable] = []

    def acquire():
        while len(errors) < 20:
            try:
                limiter.acquire()
            except EngineUnavailable as error:
                errors.append(error)

    threads = [threading.Thread(target=acquire, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    engine.close()
    for thread in threads:
        thread.join(NEVER)
    assert len(errors) >= 20
    with pytest.raises(redis.ConnectionError):
        server_of(tmp_path)
