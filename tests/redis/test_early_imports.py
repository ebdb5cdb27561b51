"""The first connection imports nothing: a child that is forked meanwhile would wait for an import lock for ever."""

import subprocess
import sys

import pytest
from tests.redis.servers import HOST

SCRIPT = """
import asyncio, sys, threading
from headway import Limiter
made = [Limiter(limit, name=limit, engine={url!r}, engine_timeout=10) for limit in ("5 concurrent; 100/s", "50/s")]
before = set(sys.modules)
def use():
    for limiter in made:
        limiter.acquire().complete()
        limiter.peek()
        with limiter:
            pass
async def use_async():
    for limiter in made:
        (await limiter.acquire_async()).complete()
        async with limiter:
            pass
if {tasks!r}:
    asyncio.run(use_async())
else:
    threads = [threading.Thread(target=use)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print(sorted(set(sys.modules) - before))
"""


def imported(url, *, tasks):
    script = SCRIPT.format(url=url.replace(HOST, "localhost"), tasks=tasks)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("tasks", [False, True], ids=["threads", "tasks"])
def test_the_first_connection_imports_nothing(valkey, tasks):
    assert imported(valkey.url, tasks=tasks) == "[]"


@pytest.mark.parametrize("tasks", [False, True], ids=["threads", "tasks"])
def test_nor_does_one_with_tls(make_tls_server, tasks):
    assert imported(make_tls_server().url, tasks=tasks) == "[]"


@pytest.mark.parametrize("tasks", [False, True], ids=["threads", "tasks"])
def test_nor_does_one_to_a_cluster(cluster, tasks):
    assert imported(cluster.url, tasks=tasks) == "[]"
