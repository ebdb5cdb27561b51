# mypy: disable-error-code="arg-type, attr-defined, union-attr, var-annotated"
"""A forked child beside its parent: it counts its own waiters, ends no permit and waits for no lock of its parent."""

import pytest
from tests.redis.callers import NOWHERE

pytestmark = pytest.mark.realtime


def test_a_child_counts_only_its_own_waiters(crew, valkey):
    worker = crew.start(
        valkey.url,
        """
limiter = make("1 concurrent", max_waiting=2)
held = limiter.acquire()
threads = [threading.Thread(target=limiter.acquire, daemon=True) for _ in range(2)]
for thread in threads: thread.start()
while limiter.peek().waiting < 2: time.sleep(0.01)
pid = os.fork()
if pid == 0:
    try:
        limiter.acquire(timeout=0.2)
    except RateLimited as error:
        say(error.reason, limiter.stats().waiting)
    os._exit(0)
os.waitpid(pid, 0)
try:
    limiter.acquire(timeout=0.2)
except RateLimited as error:
    say(error.reason, limiter.stats().waiting)
os._exit(0)
""",
    )
    assert worker.hear() == "timeout 0"
    assert worker.hear() == "max_waiting 2"


@pytest.mark.parametrize("limit", ["'1 concurrent'", "Window(1, per=0.2, remote=Remote(max_transit=60))"])
def test_a_child_does_not_end_the_permit_of_its_parent(crew, valkey, limit):
    worker = crew.start(
        valkey.url,
        f"""
limiter = make({limit})
def body():
    with limiter:
        time.sleep(0.1)  # no sign of life is on its way
        pid = os.fork()
        if pid:
            say(os.waitpid(pid, 0)[1])
            say(limiter.peek().in_flight, bool(limiter.try_acquire()))
    return pid
if not body():
    time.sleep(0.3)
    os._exit(0)
time.sleep(0.1)
say(limiter.peek().in_flight)
""",
    )
    assert worker.hear() == "0"
    assert worker.hear() == "1 False"
    assert worker.hear() == "0"
    assert worker.join() == ""


def test_a_child_does_not_wait_for_a_lock_of_its_parent(crew, valkey):
    """Another thread was about to end a permit when the process forked."""
    worker = crew.start(
        valkey.url,
        """
from headway.engines.redis.client import renewal
limiter = make("1 concurrent")
renewal._order.acquire()
pid = os.fork()
if pid == 0:
    limiter.acquire().complete()
    say("complete")
    os._exit(0)
say(os.waitpid(pid, 0)[1])
os._exit(0)
""",
    )
    assert worker.hear() == "complete"
    assert worker.hear() == "0"


@pytest.mark.parametrize("mode", ["open", "local"])
def test_a_child_without_the_engine_is_not_warned_of_itself(crew, mode):
    worker = crew.start(
        NOWHERE,
        f"""
import logging
logging.getLogger("headway").addHandler(logging.NullHandler())
limiter = make("100/minute", on_engine_error={mode!r})
limiter.acquire()
pid = os.fork()
if pid == 0:
    say(bool(limiter.acquire()))
    os._exit(0)
os.waitpid(pid, 0)
""",
    )
    assert worker.hear() == "True"
    assert worker.join() == ""
