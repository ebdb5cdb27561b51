"""Celery tasks with a limit, under real workers with an embedded server as broker, result backend and engine.

The programs are what a user writes. A task also notes how many retries its request counts.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.integrations.pages import Page
from tests.integrations.shops import excess
from tests.redis.programs import Program

from waiting import NEVER, wait_until

pytestmark = [pytest.mark.realtime, pytest.mark.slow]

APP = """
from celery import Celery
from headway.integrations.celery import LimitedTask, TaskLimit, limited

app = Celery("shop", broker=URL, backend=URL)
app.conf.update(broker_transport_options={"visibility_timeout": VISIBLE}, worker_prefetch_multiplier=4)

def retries(task):
    return task.request.retries

@app.task
def other(number):
    note(f"other-{number}")
"""


@pytest.fixture
def make(make_shop):
    return lambda code, visible=3600: make_shop(APP.replace("VISIBLE", str(visible)) + code)


def work(shop, *options):
    name = f"worker{len(shop.workers)}@here"
    quiet = ("--without-gossip", "--without-mingle", "--loglevel", "INFO")
    return shop.work("celery", "-A", "shop", "worker", "-n", name, *quiet, *options)


SEND = """
@app.task(bind=True, max_retries=0)
@limited("10/s burst 1", name="send", **engine)
def send(self, number):
    note(f"send-{number}", retries(self))
    return number
"""


def test_denied_tasks_are_held_and_keep_the_limit_without_using_retries(make):
    shop = make(SEND)
    for _ in range(2):
        work(shop, "--concurrency", "2")
    shop.send(
        "sent = [send.apply_async((n,), link=other.si(n)) for n in range(15)]\n"
        "assert [one.get(timeout=60) for one in sent] == list(range(15))"
    )
    shop.wait_for(15, "other")
    sent = shop.notes("send")
    assert sorted(int(note.what.removeprefix("send-")) for note in sent) == list(range(15))
    assert {note.counted for note in sent} == {0}
    assert len(shop.notes("other")) == 15  # what is linked to a task runs once, when it has run
    # At use. What the machine takes between the last look at the clock and the first line of the body is allowed for.
    assert excess([note.at for note in sent], 10, 1, late=0.09 + 0.05) <= 0
    assert "Traceback" not in shop.log()


SLOW = """
@app.task(bind=True, max_retries=0)
@limited("1/minute burst 1", name="slow", max_delay=3600, late=3600, key=lambda self, n: self.request.group, **engine)
def slow(self, number):
    note(f"slow-{number}", retries(self))
"""
HELD = """
inspect = app.control.inspect(timeout=30, limit=1)
while sum(map(len, (inspect.scheduled() or {}).values())) < 9:
    time.sleep(0.1)
"""


def test_other_tasks_pass_those_that_are_held_and_these_keep_their_slots_when_a_worker_ends(make, valkey):
    shop = make(SLOW, visible=10**6)
    worker = work(shop, "--concurrency", "1")
    worker.wait_until(lambda: "ready." in worker.log, "the worker")
    shop.send("for n in range(10): slow.delay(n)\nfor n in range(5): other.delay(n)" + HELD)
    shop.wait_for(1, "slow")
    # More are held than a worker prefetches, and none of them was in the pool.
    assert len(shop.wait_for(5, "other")) == 5
    assert len(shop.notes("slow")) == 1
    assert worker.log.count("received") == 15
    assert "ignored" not in worker.log
    worker.end()
    with valkey.client() as client:
        back = [json.loads(message)["headers"] for message in client.lrange("celery", 0, -1)]
        assert client.hlen("unacked") == 0
    assert len({headers["headway_promise"] for headers in back}) == 9
    assert {headers["retries"] for headers in back} == {0}
    # Another worker holds them until the same slots: a slot that is reserved now comes after theirs.
    work(shop, "--concurrency", "1")
    shop.send(
        HELD
        + "delay = slow.run.__headway_limit__[1].limiter.reserve().delay\nassert 540 < delay <= 600, delay"
    )
    assert len(shop.notes("slow")) == 1


def test_a_task_that_waited_for_its_eta_is_decided_by_the_pool(make):
    shop = make(SLOW)
    worker = work(shop, "--concurrency", "1")
    shop.send("for n in range(2): slow.apply_async((n,), countdown=0.1)")
    shop.wait_for(1, "slow")
    worker.wait_until(lambda: "ignored" in worker.log, "one that was sent back")
    assert len(shop.notes("slow")) == 1


def test_retries_of_the_task_itself_count_and_take_permits(make):
    shop = make("""
class Partner(LimitedTask):
    limit = TaskLimit("4/s burst 1", name="partner", key=lambda number: "all", **engine)

@app.task(bind=True, base=Partner, acks_late=True, autoretry_for=(OSError,), max_retries=2, retry_backoff=False,
          default_retry_delay=0)
def fails(self, number):
    note(f"fails-{number}", retries(self))
    raise OSError("not yet")
""")
    work(shop, "--concurrency", "2")
    shop.send("for n in range(3): fails.delay(n)")
    notes = shop.wait_for(9)
    worker = shop.workers[0]
    worker.wait_until(lambda: worker.log.count("raised unexpected: OSError") == 3, "three failures")
    assert sorted((note.what, note.counted) for note in shop.notes()) == [
        (f"fails-{n}", retries) for n in range(3) for retries in range(3)
    ]
    assert excess([note.at for note in notes], 4, 1, late=0.225 + 0.1) <= 0


def test_tasks_of_a_killed_worker_come_back_and_ask_again(make, valkey):
    shop = make("""
@app.task(bind=True, max_retries=0, acks_late=True)
@limited("1/s burst 1", name="send", **engine)
def send(self, number):
    note(f"send-{number}", retries(self))
""")
    worker = work(shop, "--concurrency", "1")
    shop.send("for n in range(4): send.delay(n)")
    shop.wait_for(1, "send")
    worker.kill()
    shop.workers.clear()
    with valkey.client() as client:  # the visibility timeout is over
        held = client.zrange("unacked_index", 0, -1)
        client.zadd("unacked_index", dict.fromkeys(held, 1))
    assert held
    worker = work(shop, "--concurrency", "1")
    worker.wait_until(lambda: len({note.what for note in shop.notes("send")}) == 4, "all four")
    notes = shop.notes("send")
    assert {note.counted for note in notes} == {0}
    assert excess([note.at for note in notes], 1, 1, late=0.9 + 0.1) <= 0


def test_without_a_worker_a_task_waits_where_it_is(make):
    shop = make(SEND + "\n@app.task\ndef outer():\n    send.run(7)\n    note('outer')\n")
    shop.send("for n in range(3): send(n)\nfor n in range(3): send.apply((n,)).get()")
    times = [note.at for note in shop.notes("send")]
    assert len(times) == 6
    assert times[-1] - times[0] >= 0.49
    # Called by another task, the function is not that task's: it waits, and does not send the other one back.
    work(shop, "--concurrency", "1")
    shop.send("outer.delay()\nouter.delay()")
    assert len(shop.wait_for(2, "outer")) == 2
    wait_until(lambda: len(shop.notes("send")) == 8, "both")


def test_the_decorator_is_for_functions():
    from celery import Celery

    from headway.errors import InvalidUse
    from headway.integrations.celery import limited

    app = Celery(set_as_current=False)

    @app.task(lazy=False)
    def send():
        pass

    with pytest.raises(InvalidUse):
        limited("1/s")(send)


def test_the_program_of_the_page(tmp_path, valkey):
    page = Page("Celery", tmp_path, {"redis://db/1": valkey.url, "redis://db/0": valkey.url})
    worker = Program([*page.command, "--loglevel", "INFO"], tmp_path)
    try:
        subprocess.run([sys.executable, "orders.py"], cwd=tmp_path, check=True, timeout=NEVER)
        worker.wait_until(lambda: len(page.calls()) >= 20, "all orders", within=2 * NEVER)
    finally:
        worker.end()
    assert sorted(page.calls()) == list(range(20))
