# mypy: disable-error-code="attr-defined, union-attr"
"""Clocks that are set, that drift, and that were wrong all along: those of real processes (`clocks.py`).

The audit goes by a clock that is never set. Three rows of the table in docs/failures.md: "the server's clock is set",
"the server's clock drifts", "a client's wall clock is wrong".
"""

import threading
import time

import pytest
from tests.redis.load import LEASE, LIMITS, Load, excess

from headway import FixedWindow, Limiter, Remote, Window
from waiting import NEVER, SOON, wait_until

pytestmark = pytest.mark.realtime

DAY = 24 * 3600


@pytest.mark.parametrize(
    ("kind", "step"),
    [("window", 3600), ("window-remote", 2), ("bucket", -3600), ("spacing", -2), ("window-remote", -3600)],
)
def test_the_clock_of_a_server_is_set_under_load(crew, make_server, make_clock, kind, step):
    """By an hour, all its keys expire; by two seconds, the ledger is there and its permits look older than they are."""
    limit, clock = LIMITS[kind], make_clock()
    server = make_server(clock=clock)
    load = Load(crew, f"{server.url}?lease={LEASE}", limit).run()
    clock.set(step)
    was_set = time.monotonic()
    stated = stated_quarantine(load, server.url)
    wait_until(lambda: crew.uses()[-1] > was_set + stated + 0.2, "grants after a quarantine")
    load.stop()
    uses = load.end()
    assert excess(limit, uses) <= 0
    noticed = min(load.noticed)
    assert noticed > was_set
    # The others hear of it a moment later, and may use until then what they had been promised.
    again = min(use for use in uses if use > noticed + 0.1)
    assert 0.99 * stated < again - noticed < stated + SOON


def stated_quarantine(load, url):
    registry = Limiter(
        load.limit, name=load.crew.name, engine=f"{url}?lease={LEASE}"
    )._shared.ledgers.registry
    return registry.quarantine(registry.ledger((None,)))[0] / 1e6


def test_a_release_after_a_clock_step_serves_no_waiter_by_the_new_time(
    make_server, make_clock, connect, name
):
    """No caller waits for the answer to a release. It serves the queue, so the time is checked all the same."""
    clock = make_clock()
    server = make_server(clock=clock)
    limit = Window(2, per=2, remote=Remote(resolution=0, max_transit=2))
    holder, other = (Limiter(limit, name=name, engine=connect(f"{server.url}?lease=1")) for _ in range(2))
    held = [holder.acquire(), holder.acquire()]
    granted = []
    waiting = threading.Thread(
        target=lambda: granted.append((other.acquire(timeout=NEVER), time.monotonic()))
    )
    waiting.start()
    wait_until(lambda: holder.peek().waiting == 1, "a waiter")
    client, (seconds, _) = server.client(), server.client().time()
    clock.set(10)
    wait_until(lambda: client.time()[0] >= seconds + 9, "the new time")
    ended = time.monotonic()
    held.pop().complete()
    waiting.join(NEVER)
    ((permit, at),) = granted
    for one in (permit, *held):
        one.complete()
    assert at - ended > 2


def test_a_step_forward_is_not_seen_by_a_new_client(make_server, make_clock, connect, name):
    """As documented: it is given what looks free, twice the limit in all, until a client that knows better asks."""
    clock = make_clock()
    server = make_server(clock=clock)
    limiter, newcomer = (
        Limiter(Window(5, per=60), name=name, engine=connect(f"{server.url}?lease={LEASE}")) for _ in range(2)
    )
    begin = time.monotonic()
    assert all(limiter.try_acquire() for _ in range(5))
    client, (seconds, _) = server.client(), server.client().time()
    clock.set(62)
    wait_until(lambda: client.time()[0] > seconds + 60, "the new time")
    granted = [newcomer.try_acquire() for _ in range(6)]
    assert sum(map(bool, granted)) == 5
    assert time.monotonic() - begin < 60  # all ten in one window
    assert limiter.try_acquire().reason == "quarantine"
    assert newcomer.try_acquire().reason == "quarantine"


def test_a_small_step_forward_is_seen_too(make_server, make_clock, name, caplog):
    """A command may be under way for as long as its time-out; but it rarely is, and it is known when it was."""
    clock = make_clock()
    server = make_server(clock=clock)
    limit = Window(5, per=2, remote=False)
    limiter = Limiter(limit, name=name, engine=f"{server.url}?lease=0.1", engine_timeout=2)
    begin = time.monotonic()
    assert all(limiter.try_acquire() for _ in range(5))
    clock.set(0.9)
    wait_until(limiter.try_acquire, "the next window")
    assert time.monotonic() - begin > 2
    assert "the server's clock was set" in caplog.text


def test_a_command_that_is_late_is_no_step(valkey, make_proxy, name, caplog):
    """It arrives later than its time, and is asked again with more of it."""
    proxy = make_proxy(valkey)
    limiter = Limiter(Window(5, per=2), name=name, engine=proxy.url, engine_timeout=5)
    assert limiter.try_acquire()
    proxy.delay(requests=0.2)
    assert all(limiter.try_acquire() for _ in range(4))
    assert not limiter.try_acquire()
    assert "clock" not in caplog.text


@pytest.mark.parametrize("ppm", [19_000, -19_000])
def test_a_clock_that_drifts_as_far_as_was_said(crew, make_server, make_clock, ppm):
    """Twenty times what is usual, and the address says so: 10 ms in half a second, which the audit would see."""
    limit, clock = LIMITS["window-remote"], make_clock()
    clock.drift(ppm)
    server = make_server(clock=clock)
    load = Load(crew, f"{server.url}?lease={LEASE}&drift_ppm=20000", limit, 2.5).run()
    uses = load.end()
    assert excess(limit, uses) <= 0
    assert len(uses) > 20
    assert not load.quarantines


@pytest.mark.parametrize("kind", ["window", "window-remote", "bucket"])
def test_clients_whose_wall_clocks_are_wrong(crew, valkey, make_clock, kind):
    """A day ahead, a day behind, and two that are right; and it is the same whose limit is the newest."""
    ahead, behind = make_clock(), make_clock()
    ahead.set(DAY)
    behind.set(-DAY)
    limit = LIMITS[kind]
    load = Load(crew, f"{valkey.url}?lease={LEASE}", limit, 2.0, clocks=[ahead, None, behind, None]).run()
    uses = load.end()
    assert excess(limit, uses) <= 0
    assert len(uses) > 20
    assert not load.quarantines


QUOTA = """
limiter = make(FixedWindow(5, per="day"), max_quarantine=None)
for _ in range(2): limiter.acquire()
say("used two")
while (answer := limiter.try_acquire(cost=4)).reason != "quarantine": time.sleep(0.01)
say(answer.retry_after)
"""


def test_a_calendar_quota_goes_by_the_calendar_of_the_server(crew, valkey, make_clock):
    """The client thinks that the day ends in a minute: it counts in the same day, and waits for the same midnight."""
    wrong = make_clock()
    wrong.set(DAY - time.time() % DAY - 60)
    worker = crew.start(valkey.url, QUOTA, clock=wrong)
    assert worker.hear() == "used two"
    limiter = Limiter(FixedWindow(5, per="day"), name=crew.name, engine=valkey.url, max_quarantine=None)
    assert limiter.peek().remaining == 3
    valkey.client().flushall()
    retry_after = float(worker.hear())
    midnight = DAY - time.time() % DAY
    # Plus 5 %, what clocks may drift, and a tenth of a second; never before.
    assert midnight <= retry_after <= 1.06 * midnight + 2
