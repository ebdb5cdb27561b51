"""Dramatiq actors with a limit, under a real worker with an embedded server as broker, result backend and engine."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.integrations.pages import Page
from tests.integrations.shops import excess
from tests.redis.programs import Program

from headway.errors import InvalidArgument
from waiting import NEVER

pytestmark = [pytest.mark.realtime, pytest.mark.slow]

APP = """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from headway.integrations.dramatiq import RateLimits, TaskLimit

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
broker.add_middleware(CurrentMessage())
broker.add_middleware(RateLimits())
dramatiq.set_broker(broker)

def retries():
    return CurrentMessage.get_current_message().options.get("retries", 0)

@dramatiq.actor
def other(number):
    note(f"other-{number}")

@dramatiq.actor(max_retries=0, store_results=True, limit=TaskLimit("4/s burst 1", name="send", early=0.3, **engine))
def send(number):
    note(f"send-{number}", retries())
    return number

@dramatiq.actor(max_retries=2, min_backoff=1, max_backoff=2,
                limit=TaskLimit("4/s burst 1", name="fails", early=0.3, **engine))
def fails(number):
    note(f"fails-{number}", retries())
    raise OSError("not yet")

@dramatiq.actor(max_retries=0, limit=TaskLimit("1 concurrent", name="alone", **engine))
def alone(number):
    note(f"alone-{number}", retries())
    if number == 0:
        raise ValueError("its permit is given back")
"""

QUICK = {"dramatiq_worker_timeout": "50"}


@pytest.fixture
def shop(make_shop):
    return make_shop(APP)


def work(shop):
    return shop.work("dramatiq", "shop", "--processes", "2", "--threads", "2", **QUICK)


def test_denied_messages_come_back_and_use_no_retries(shop):
    worker = work(shop)
    shop.send(
        "sent = [send.send(n) for n in range(10)]\n"
        "for n in range(5): other.send(n)\n"
        "assert [one.get_result(block=True, timeout=60_000) for one in sent] == list(range(10))"
    )
    sent = shop.wait_for(10, "send")
    assert sorted(note.what for note in sent) == sorted(f"send-{n}" for n in range(10))
    assert {note.counted for note in sent} == {0}
    assert excess([note.at for note in sent], 4, 1, late=0.225 + 0.1) <= 0
    assert max(note.at for note in shop.notes("other")) < sent[-1].at
    assert "Traceback" not in worker.log


def test_retries_count_and_take_permits_and_a_failure_gives_a_permit_back(shop):
    work(shop)
    shop.send("fails.send(1)\nfor n in range(3): alone.send(n)")
    assert [note.counted for note in shop.wait_for(3, "fails")] == [0, 1, 2]
    assert excess([note.at for note in shop.notes("fails")], 4, 1, late=0.225 + 0.1) <= 0
    assert len(shop.wait_for(3, "alone")) == 3


def test_the_option_is_a_limit():
    import dramatiq
    from dramatiq.brokers.stub import StubBroker

    from headway.integrations.dramatiq import RateLimits

    broker = StubBroker()
    middleware = RateLimits()
    broker.add_middleware(middleware)

    @dramatiq.actor(broker=broker, limit="5/s")
    def send():
        pass

    message = dramatiq.broker.MessageProxy(send.message())
    with pytest.raises(InvalidArgument):
        middleware.before_process_message(broker, message)
    broker.close()


def test_the_program_of_the_page(tmp_path, valkey):
    page = Page("Dramatiq", tmp_path, {"redis://db/0": valkey.url})
    worker = Program(page.command, tmp_path, PYTHONPATH=str(tmp_path), **QUICK)
    try:
        subprocess.run([sys.executable, "orders.py"], cwd=tmp_path, check=True, timeout=NEVER)
        worker.wait_until(lambda: len(page.calls()) >= 10, "all orders", within=2 * NEVER)
    finally:
        worker.end()
    assert sorted(page.calls()) == list(range(10))
