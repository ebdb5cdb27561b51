"""RQ jobs with a limit, under a real worker with its scheduler, and an embedded server for everything."""

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
from redis import Redis
from rq import Queue, Retry, get_current_job
from headway.integrations.rq import limited

def queue(name="orders"):
    return Queue(name, connection=Redis.from_url(URL))

def other(number):
    note(f"other-{number}")

@limited("1/s burst 1", name="send", **engine)
def send(number):
    job = get_current_job()
    note(f"send-{number}", -1 if job is None else job.retries_left or 0)
    if number == "fails":
        raise OSError("not yet")
    return number

@limited("15/minute burst 1", name="slow", **engine)
def slow(number):
    note(f"slow-{number}", get_current_job().retries_left)
"""


@pytest.fixture
def shop(make_shop):
    return make_shop(APP)


def work(shop):
    return shop.work("rq", "worker", "--url", shop.url, "--with-scheduler", "orders")


def test_denied_jobs_are_scheduled_for_their_time_and_use_no_retries(shop):
    worker = work(shop)
    shop.send(
        "for n in range(3): queue().enqueue(slow, n, retry=Retry(max=1))\n"
        "for n in range(3): queue().enqueue(other, n)"
    )
    notes = shop.wait_for(6)
    sent = [note for note in notes if note.what.startswith("slow")]
    assert sorted(note.what for note in sent) == [f"slow-{n}" for n in range(3)]
    assert {note.counted for note in sent} == {1}  # retries that are left
    # Other jobs did not wait for the limited ones: all ran before the last of those.
    assert max(note.at for note in notes if note.what.startswith("other")) < sent[-1].at
    assert excess([note.at for note in sent], 0.25, 1, late=3.6 + 0.1) <= 0
    assert worker.log.count("shop.slow(") >= 5  # two of three went back, at least once
    assert "Traceback" not in worker.log


def test_retries_of_the_job_itself_count_and_take_permits(shop):
    work(shop)
    shop.send("queue().enqueue(send, 'fails', retry=Retry(max=2))")
    notes = shop.wait_for(3)
    assert [note.counted for note in notes] == [2, 1, 0]
    assert excess([note.at for note in notes], 1, 1, late=0.9 + 0.1) <= 0


def test_called_directly_it_waits(shop):
    shop.send("for n in range(2): send(n)")
    first, second = shop.notes()
    assert second.at - first.at >= 0.99
    assert first.counted == -1


def test_the_program_of_the_page(tmp_path, valkey):
    page = Page("RQ", tmp_path, {"redis://db/0": valkey.url})
    worker = Program(page.command, tmp_path)
    try:
        subprocess.run([sys.executable, "orders.py"], cwd=tmp_path, check=True, timeout=NEVER)
        worker.wait_until(lambda: len(page.calls()) >= 5, "all orders", within=2 * NEVER)
    finally:
        worker.end()
    assert sorted(page.calls()) == list(range(5))
