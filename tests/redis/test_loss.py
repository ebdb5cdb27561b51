# mypy: disable-error-code="attr-defined, index, no-redef, override, truthy-bool, union-attr, var-annotated"
"""An engine that forgets: flushed, restarted, overtaken by a failover, or with its clock set.

Four processes keep a ledger busy while it happens. Whatever the engine has forgotten, the audit must never see more
than the limit in a window; and the quarantine must be as long as it is said to be, and end by itself.
"""

import itertools
import logging
import threading
import time

import pytest
from tests.redis.load import LEASE, LIMITS, Load, excess
from tests.redis.servers import in_step
from tests.redis.workers import Use, longest_silence

from headway import Clock, FixedWindow, Limiter, RateLimited
from headway.engines.redis import Engine
from headway.engines.redis.net.address import read_address
from waiting import NEVER, SOON, wait_until

pytestmark = pytest.mark.realtime


@pytest.mark.parametrize("kind", ["window", "window-remote", "bucket", "spacing"])
def test_flushall_under_load(crew, valkey, kind):
    limit = LIMITS[kind]
    load = Load(crew, f"{valkey.url}?lease={LEASE}", limit).run()
    before = time.monotonic()
    valkey.client().flushall()
    after = time.monotonic()
    load.await_quarantine(after)
    uses = load.end()
    assert excess(limit, uses) <= 0
    silence, began = longest_silence([use for use in uses if use > before - 0.6])
    assert load.quarantines
    assert began < after + 0.6
    # As long as stated, and little longer.
    assert max(load.quarantines) * 0.99 < silence + 0.1
    assert silence < max(load.quarantines) + SOON


def test_script_flush_under_load(crew, valkey):
    limit = LIMITS["window"]
    load = Load(crew, f"{valkey.url}?lease={LEASE}", limit).run()
    client = valkey.client()
    for _ in range(30):
        client.script_flush()
        time.sleep(0.02)
    load.await_uses(time.monotonic())
    uses = load.end()
    assert excess(limit, uses) <= 0
    assert not load.quarantines


def test_an_evicted_ledger_is_a_lost_one(valkey, name, caplog):
    limiter = Limiter("5/s", name=name, engine=f"{valkey.url}?lease={LEASE}", remote=False)
    other = Limiter("5/s", name=f"{name}o", engine=f"{valkey.url}?lease={LEASE}", remote=False)
    assert all(limiter.try_acquire() for _ in range(5))
    assert other.try_acquire()
    valkey.client().delete(limiter._shared.ledgers.registry.ledger((None,)).keys[0])
    denied = limiter.try_acquire()
    assert denied.reason == "quarantine"
    assert 1.5 < denied.retry_after < 2
    assert limiter.peek().remaining == 0
    assert other.try_acquire()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "nothing is granted for" in record.getMessage()
    begin = time.monotonic()
    limiter.acquire()
    assert time.monotonic() - begin > 1.4


@pytest.mark.parametrize("kind", ["window-remote", "concurrency"])
def test_a_ledger_of_which_a_part_was_evicted_is_a_lost_one(valkey, name, kind, caplog):
    limiter = Limiter(LIMITS[kind], name=name, engine=f"{valkey.url}?lease=0.3")
    permits = [limiter.try_acquire() for _ in range(3)]
    client = valkey.client()
    root = limiter._shared.ledgers.registry.ledger((None,)).keys[0]
    assert client.delete(root + b":c1", root + b":o1")
    for permit in permits:
        permit.complete()
    wait_until(lambda: limiter.peek() and "nothing is granted" in caplog.text, "a quarantine")
    limiter.acquire(timeout=NEVER).complete()


def test_trust_goes_on_at_once(valkey, name):
    limiter = Limiter("5/s", name=name, engine=valkey.url, on_ledger_loss="trust")
    assert all(limiter.try_acquire() for _ in range(5))
    valkey.client().flushall()
    assert limiter.try_acquire()


def test_open_goes_on_after_a_restart_without_persistence_and_says_that_it_is_in_doubt(
    make_server, name, caplog
):
    """Users that were let in while the server was away are not denied for the quarantine once it is there again."""
    server = make_server()
    limiter = Limiter("5 per 50s", name=name, engine=server.url, on_engine_error="open", remote=False)
    assert all(limiter.try_acquire() for _ in range(5))
    assert not limiter.try_acquire()
    server.kill()
    assert limiter.try_acquire()
    server.restart()
    assert limiter.try_acquire()
    assert 0 < limiter.peek().in_doubt < 60
    assert all(limiter.try_acquire() for _ in range(4))
    denied = limiter.try_acquire()
    assert (denied.reason, "in doubt" in repr(denied)) == ("limit", True)
    assert 0 < denied.status.in_doubt < 60
    stranger = Limiter("5 per 50s", name=name, engine=f"{server.url}?lease=5", remote=False)
    assert stranger.peek().in_doubt > 0
    assert caplog.text.count("it is trusted all the same") == 1


def test_trust_keeps_what_was_granted_since_the_loss(valkey, name):
    """Another process began the ledger anew: a client that knew the old one does not forget those grants, too."""
    knows = Limiter("5 per 50s", name=name, engine=valkey.url, on_ledger_loss="trust", remote=False)
    assert knows.try_acquire()
    valkey.client().flushall()
    fresh = Limiter("5 per 50s", name=name, engine=f"{valkey.url}?lease=5", remote=False)
    assert fresh.try_acquire(cost=4)
    assert knows.try_acquire()
    assert not knows.try_acquire()
    assert not fresh.try_acquire()
    assert fresh.peek().in_doubt > 0


@pytest.mark.parametrize(
    "persistence", [{}, {"appendonly": "yes", "appendfsync": "always"}], ids=["none", "all"]
)
def test_trust_is_in_doubt_only_where_something_may_be_missing(make_server, name, persistence):
    server = make_server(**persistence)
    limiter = Limiter("5 per 50s", name=name, engine=server.url, on_ledger_loss="trust", remote=False)
    assert limiter.try_acquire()
    server.restart()
    assert limiter.try_acquire()
    assert (limiter.peek().in_doubt > 0) == (not persistence)


def test_a_cap_bounds_the_quarantine_and_is_told(valkey, name, caplog):
    events = []
    limiter = Limiter("5/day", name=name, engine=valkey.url, max_quarantine=0.3, on_event=events.append)
    assert limiter.try_acquire()
    valkey.client().flushall()
    assert limiter.try_acquire().reason == "quarantine"
    assert "max_quarantine" in caplog.text
    assert [event.seconds for event in events if event.kind == "quarantine"] == [0.3]
    time.sleep(0.35)
    assert limiter.try_acquire()


def test_after_a_cap_every_denial_says_that_it_is_in_doubt(valkey, name):
    """A limiter that has seen the loss and a new one both say so, until what was forgotten is harmless."""
    options = {"name": name, "engine": f"{valkey.url}?lease=0.1", "max_quarantine": 0.1, "remote": False}
    limiter = Limiter("2 per 4s", **options)
    assert limiter.try_acquire(cost=2)
    assert limiter.peek().in_doubt == 0
    valkey.client().flushall()
    denied = limiter.try_acquire()
    assert (denied.reason, denied.status.in_doubt) == ("quarantine", 0)
    assert "quarantine" in repr(denied)
    with pytest.raises(RateLimited, match="in quarantine"):
        limiter.acquire(timeout=0)
    time.sleep(0.15)
    assert limiter.try_acquire(cost=2)
    for each in (limiter, Limiter("2 per 4s", **options)):
        denied = each.try_acquire()
        assert (denied.reason, "in doubt" in repr(denied)) == ("limit", True)
        assert 0 < denied.status.in_doubt < 4.3
        assert 0 < each.peek().in_doubt < 4.3
        with pytest.raises(RateLimited, match="in doubt") as caught:
            each.acquire(timeout=0)
        assert caught.value.status.in_doubt > 0
    limiter.acquire(cost=2)
    time.sleep(0.3)
    denied = limiter.try_acquire()
    assert denied.status.in_doubt == limiter.peek().in_doubt == 0
    assert "doubt" not in repr(denied)


def test_holders_that_live_keep_what_they_have_when_it_is_forgotten(valkey, name):
    url = f"{valkey.url}?lease={LEASE}"
    limiter, other = (Limiter("2 concurrent", name=name, engine=url) for _ in range(2))
    held = limiter.acquire()
    other.peek()
    valkey.client().flushall()
    permit = other.acquire(timeout=NEVER)  # after the quarantine; the other slot is still held
    assert not other.try_acquire()
    with held:
        pass
    wait_until(lambda: other.peek().in_flight == 1, "the end of what was forgotten")
    permit.complete()


@pytest.mark.parametrize(
    "options",
    [{}, {"save": "3600 1"}, {"appendonly": "yes", "appendfsync": "everysec"}],
    ids=["nothing", "snapshot", "everysec"],
)
def test_a_restart_that_may_have_forgotten_is_a_loss(crew, make_server, options):
    """Whether or not its file has everything: no client can know."""
    limit = LIMITS["window"]
    server = make_server(**options)
    load = Load(crew, f"{server.url}?lease={LEASE}", limit).run()
    if "save" in options:
        server.client().save()
        before = len(crew.uses())
        wait_until(lambda: len(crew.uses()) > before, "grants that the snapshot does not have")
    killed = time.monotonic()
    server.kill()
    server.restart()
    load.await_quarantine(killed)
    uses = load.end()
    assert excess(limit, uses) <= 0
    assert load.quarantines


def test_a_restart_from_a_complete_file_is_none(crew, make_server):
    limit = LIMITS["window-remote"]
    server = make_server(appendonly="yes", appendfsync="always")
    load = Load(crew, f"{server.url}?lease={LEASE}", limit).run()
    server.kill()
    server.restart()
    load.await_uses(time.monotonic())
    uses = load.end()
    assert excess(limit, uses) <= 0
    assert not load.quarantines


def test_a_failover_that_lost_grants(crew, make_server, make_proxy):
    """Asynchronous replication: the replica is cut off, grants go on, and then it takes over."""
    limit = LIMITS["window-remote"]
    primary = make_server(repl_diskless_sync_delay=0)
    replica = make_server(replicaof=f"127.0.0.1 {primary.port}", repl_diskless_sync_delay=0)
    in_step(replica)
    proxy = make_proxy(primary)
    load = Load(crew, f"{proxy.url}?lease={LEASE}", limit).run()
    replica.client().config_set("min-replicas-to-write", 0)
    replica.stop()  # what is granted now, it will never know
    time.sleep(0.8)
    lost = [use for use in crew.uses() if use > time.monotonic() - 0.6]
    cut_off = time.monotonic()
    proxy.refuse()
    primary.kill()
    replica.cont()
    replica.client().replicaof("NO", "ONE")
    proxy._server = replica
    proxy.heal()
    load.await_quarantine(cut_off)
    uses = load.end()
    assert lost
    assert excess(limit, uses) <= 0
    assert load.quarantines


class Stepped(Engine):
    """Its server's clock can be set. It is read when a command is composed, so none may be under way just then."""

    offset = 0.0
    ticking = threading.Event()
    ticking.set()

    @property
    def fixed_time(self):
        self.ticking.wait()
        return time.time_ns() // 1000 + self.offset * 1e6

    def set_clock(self, offset):
        self.ticking.clear()
        time.sleep(0.05)
        self.offset = offset
        self.ticking.set()

    @fixed_time.setter
    def fixed_time(self, value):
        pass


@pytest.mark.parametrize(
    ("kind", "step"),
    [*itertools.product(LIMITS, [3600, -3600]), ("concurrency", 2), ("window-remote", -2)],
    ids=lambda value: value if isinstance(value, str) else f"{value:+} s",
)
def test_a_clock_that_is_set_under_load(valkey, name, kind, step, caplog):
    limit = LIMITS[kind]
    engine = Stepped(read_address(f"{valkey.url}?lease=0.3"))
    limiters = [Limiter(limit, name=name, engine=engine) for _ in range(2)]
    times, inside, most, done = [], [], [], threading.Event()

    def work(limiter):
        while not done.is_set():
            with limiter as permit:
                inside.append(1)
                times.append(Use.of(permit))
                most.append(len(inside))
                time.sleep(0.002)
                inside.pop()

    threads = [threading.Thread(target=work, args=(limiters[i % 2],)) for i in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.6)
    engine.set_clock(step)
    try:
        wait_until(lambda: "nothing is granted" in caplog.text, "a quarantine")
        before = len(times)
        wait_until(lambda: len(times) >= before + 8, "grants again")
    finally:
        done.set()
        for thread in threads:
            thread.join(NEVER)
        engine.close()
    assert "the server's clock was set" in caplog.text
    assert "was lost" not in caplog.text
    times.sort()
    assert excess(limit, times) <= 0
    if kind == "concurrency":
        assert max(most) <= 3
    assert longest_silence(times)[0] < SOON


@pytest.mark.parametrize("on_loss", ["quarantine", "trust"])
def test_a_client_that_never_saw_the_old_time_is_not_frozen_by_it(valkey, name, on_loss):
    """All processes begin anew after a clock was set back: no process remembers the old time, but the ledger does."""
    before = Stepped(read_address(f"{valkey.url}?lease=0.2"))
    limiter = Limiter("20/s burst 1", name=name, engine=before)
    limiter.acquire()
    after = Stepped(read_address(f"{valkey.url}?lease=0.2"))
    after.offset = -3600
    fresh = Limiter("20/s burst 1", name=name, engine=after, on_ledger_loss=on_loss)
    begin = time.monotonic()
    for _ in range(15):
        fresh.acquire(timeout=NEVER)
    assert time.monotonic() - begin < NEVER
    for engine in (before, after):
        engine.close()


class Offset(Clock):
    """A client's own clock, off by so many seconds, and fast by so many parts in a million."""

    resolution = 1e-9
    drift_ppm = 250.0

    def __init__(self, offset, ppm):
        self._offset, self._rate, self._begin = int(offset * 1e9), 1 + ppm / 1e6, time.monotonic_ns()

    def now(self):
        return self._begin + self._offset + int((time.monotonic_ns() - self._begin) * self._rate)

    def sleep(self, seconds):
        time.sleep(seconds / self._rate)


@pytest.mark.parametrize("offsets", [(0, 0.1), (0, 3600)], ids=str)
@pytest.mark.parametrize("kind", ["window", "window-remote", "bucket", "spacing"])
def test_clients_whose_clocks_differ(valkey, name, kind, offsets, caplog):
    limit = LIMITS[kind]
    limiters = [
        Limiter(limit, name=name, engine=f"{valkey.url}?lease=0.5", clock=Offset(offset, ppm))
        for offset, ppm in zip(offsets, (-200, 200), strict=True)
    ]
    times, end = [], time.monotonic() + 0.8

    def work(limiter):
        while time.monotonic() < end:
            with limiter as permit:
                times.append(Use.of(permit))

    threads = [threading.Thread(target=work, args=(limiters[i % 2],)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(NEVER)
    times.sort()
    assert excess(limit, times) <= 0
    assert len(times) >= 8
    assert "quarantine" not in caplog.text
    assert "nothing is granted" not in caplog.text


def test_a_calendar_quota_waits_for_its_reset_at_most(valkey, name):
    limiter = Limiter(FixedWindow(5, per="second"), name=name, engine=valkey.url)
    assert limiter.try_acquire()
    valkey.client().flushall()
    denied = limiter.try_acquire()
    assert denied.reason == "quarantine"
    assert denied.retry_after < 1.3
