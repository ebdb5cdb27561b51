"""arq jobs with a limit, under a real worker with an embedded server for everything."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.integrations.pages import Page
from tests.integrations.shops import excess
from tests.redis.programs import Program

from waiting import NEVER

pytestmark = [pytest.mark.realtime, pytest.mark.slow]

APP = """
import asyncio
from arq import Retry, create_pool
from arq.connections import RedisSettings
from headway.integrations.arq import limited

async def other(ctx, number):
    note(f"other-{number}")

@limited("4/s burst 1", name="send", early=0.3, **engine)
async def send(ctx, number):
    note(f"send-{number}", ctx.get("job_try", -1))
    if number == "fails" and ctx["job_try"] < 3:
        raise Retry(defer=0.01)
    return number

class WorkerSettings:
    functions = [other, send]
    redis_settings = RedisSettings.from_dsn(URL)
    poll_delay = 0.1
    max_tries = MAX_TRIES

async def enqueue(*jobs):
    pool = await create_pool(WorkerSettings.redis_settings)
    sent = [await pool.enqueue_job(name, number) for name, number in jobs]
    found = [await one.result(timeout=60, poll_delay=0.1) for one in sent]
    await pool.close()
    return found
"""


def test_denied_jobs_come_back_and_use_no_tries(make_shop):
    shop = make_shop(APP.replace("MAX_TRIES", "1"))
    worker = shop.work("arq", "shop.WorkerSettings")
    shop.send(
        "jobs = [('send', n) for n in range(10)] + [('other', n) for n in range(5)]\n"
        "assert asyncio.run(enqueue(*jobs)) == [*range(10), *[None] * 5]"
    )
    sent = shop.notes("send")
    assert sorted(note.what for note in sent) == sorted(f"send-{n}" for n in range(10))
    assert {note.counted for note in sent} == {1}
    assert excess([note.at for note in sent], 4, 1, late=0.225 + 0.1) <= 0
    assert max(note.at for note in shop.notes("other")) < sent[-1].at
    assert "Traceback" not in worker.log


def test_tries_of_the_job_itself_count_and_take_permits(make_shop):
    shop = make_shop(APP.replace("MAX_TRIES", "3"))
    shop.work("arq", "shop.WorkerSettings")
    shop.send("assert asyncio.run(enqueue(('send', 'fails'), ('send', 'fails'))) == ['fails'] * 2")
    assert sorted(note.counted for note in shop.notes()) == [1, 1, 2, 2, 3, 3]
    assert excess([note.at for note in shop.notes()], 4, 1, late=0.225 + 0.1) <= 0


def test_called_directly_it_waits(make_shop):
    shop = make_shop(APP.replace("MAX_TRIES", "1"))
    shop.send("async def main():\n    await send({}, 1)\n    await send({}, 2)\nasyncio.run(main())")
    first, second = shop.notes()
    assert second.at - first.at >= 0.24


def test_the_program_of_the_page(tmp_path, valkey):
    page = Page("arq", tmp_path, {"redis://db/0": valkey.url})
    worker = Program(page.command, tmp_path, PYTHONPATH=str(tmp_path))
    try:
        subprocess.run([sys.executable, "orders.py"], cwd=tmp_path, check=True, timeout=NEVER)
        worker.wait_until(lambda: len(page.calls()) >= 10, "all orders", within=2 * NEVER)
    finally:
        worker.end()
    assert sorted(page.calls()) == list(range(10))
