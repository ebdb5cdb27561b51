"""A limiter with `prefetch` when something fails: the engine, the wire, another client, or its own process."""

import time
from functools import partial
from pathlib import Path

import pytest
from tests.redis.callers import Callers, outcome_of
from tests.redis.lease_storm import storm
from tests.redis.workers import Use, most_for_certain, most_in_any

from headway import Denied, EngineUnavailable, Limiter, LimiterClosed, Permit, PermitExpired, Remote, Window
from headway.limiter.prefetch_options import Prefetch
from waiting import NEVER, SOON, wait_until

pytestmark = pytest.mark.realtime

TTL = 0.6
PREFETCH = Prefetch(ttl=TTL)


@pytest.fixture
def make(name):
    """make(url, limit, **options): a limiter with prefetch, closed when the test is over."""
    made = []

    def make(url, limit=Window(100, per=0.5, remote=False), **options):  # noqa: B008 - it is a value
        given = {"name": name, "prefetch": PREFETCH, "engine_timeout": 0.5, **options}
        made.append(Limiter(limit, engine=url, **given))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def fill(limiter, count):
    """Have a limiter hold at least so many tokens, and its lease be young."""
    for _ in range(3):
        limiter.acquire(cost=count, timeout=NEVER).cancel()
    leases = limiter._leases
    assert leases.wait_for_answers(leases.call_all(), NEVER)
    assert limiter.peek().lease.tokens >= count


class Users:
    """Threads that use limiters as fast as they may; their uses."""

    def __init__(self, *limiters):
        self.uses, self.going = [], True
        self.callers = Callers(*[partial(self._work, limiter) for limiter in limiters])

    def _work(self, limiter):
        while self.going:
            asked = time.monotonic()
            if isinstance(outcome_of(limiter.try_acquire), Permit):
                self.uses.append(Use(time.monotonic(), asked))
            time.sleep(0.003)

    def await_uses(self, since, count):
        wait_until(lambda: sum(use > since for use in list(self.uses)) >= count, "uses")

    def end(self):
        self.going = False
        assert self.callers.join() == [None] * len(self.callers.threads)
        return sorted(self.uses)


def until_it_ends(limiter):
    wait_until(lambda: limiter.peek().lease.expires_in == 0, "the end of the lease", every=0.005)


# -- the engine is away


@pytest.mark.parametrize("accident", ["stop", "kill"])
def test_tokens_last_until_the_lease_ends_and_then_the_engine_is_missing(make_server, make, accident):
    server = make_server()
    limiter = make(server.url)
    fill(limiter, 50)
    getattr(server, accident)()
    assert limiter.try_acquire()
    permit = limiter.acquire(timeout=NEVER)
    assert 0 < permit.expires_in <= TTL
    permit.check()
    until_it_ends(limiter)
    with pytest.raises(PermitExpired):
        permit.check()
    assert (permit.ended, permit.expires_in) == ("cancel", float("inf"))

    def fails():
        got = outcome_of(limiter.try_acquire)
        assert isinstance(got, Denied | EngineUnavailable), "granted after the end of the lease"
        return isinstance(got, EngineUnavailable)

    wait_until(fails, "the error")
    with pytest.raises(EngineUnavailable):
        limiter.acquire()
    assert limiter.peek().lease.tokens == 0
    if accident == "stop":
        server.cont()
    else:
        server.restart()
    wait_until(lambda: isinstance(outcome_of(limiter.try_acquire), Permit), "recovery")


def test_a_waiter_hears_of_it_when_the_lease_ends(make_server, make):
    server = make_server()
    limiter = make(server.url, "5/hour")
    limiter.acquire(cost=5, timeout=NEVER)
    waiters = Callers(limiter.acquire, limiter.acquire)
    wait_until(lambda: limiter.stats().waiting == 2, "the waiters")
    server.stop()
    assert [type(outcome) for outcome in waiters.join()] == [EngineUnavailable] * 2
    server.cont()


def test_the_event_of_an_error_may_use_the_limiter_from_another_thread(make_server, make):
    server, seen = make_server(), []

    def on_event(event):
        if event.kind == "engine_error":
            seen.append(Callers(partial(Limiter.try_acquire, limiter)).join())

    limiter = make(server.url, on_event=on_event)
    fill(limiter, 5)
    server.kill()
    wait_until(lambda: seen, "the event", within=SOON)
    limiter.close()
    assert seen[0] != []


def test_open_passes_everything_when_the_lease_has_ended(make_server, make):
    server = make_server()
    limiter = make(server.url, "5/hour", on_engine_error="open")
    limiter.acquire(cost=5, timeout=NEVER)
    assert not limiter.try_acquire()
    server.stop()
    wait_until(limiter.try_acquire, "a permit")
    assert all(limiter.try_acquire() for _ in range(20))
    assert limiter.acquire(cost=3)
    server.cont()
    wait_until(lambda: not limiter.try_acquire(), "the engine")


def test_local_keeps_a_share_when_the_lease_has_ended(make_server, make):
    server = make_server()
    limiter = make(server.url, "20/hour", on_engine_error="local", local_share=0.1)
    limiter.acquire(cost=20, timeout=NEVER)
    server.kill()
    wait_until(limiter.try_acquire, "a permit of the share")
    assert limiter.try_acquire()
    assert not limiter.try_acquire()
    waiter = Callers(limiter.acquire)
    time.sleep(0.1)
    limiter.close()
    assert isinstance(waiter.join()[0], LimiterClosed)


def test_closing_without_an_engine_ends_the_thread(make_server, make):
    server = make_server()
    limiter = make(server.url)
    fill(limiter, 5)
    thread = limiter._leases._thread
    server.kill()
    begin = time.monotonic()
    limiter.close()
    assert time.monotonic() - begin < SOON
    thread.join(SOON)
    assert not thread.is_alive()


# -- the wire


def test_answers_that_are_lost_or_late_neither_mint_nor_lose(valkey, make_proxy, make):
    proxy = make_proxy(valkey)
    limits = {"limit": "40/s", "engine_timeout": 0.3}
    near, far = make(valkey.url, **limits), make(proxy.url, **limits)
    users = Users(near, far)
    for step in range(8):
        time.sleep(0.5)
        if step % 2:
            proxy.drop_answers(2, only=b"EVALSHA", cut=step % 4 == 1)
            proxy.delay(answers=0.05 * step, requests=0.02 * step)
    proxy.heal()
    users.await_uses(time.monotonic(), 60)
    assert most_for_certain(1.0, users.end()) <= 40


def test_scripts_that_were_flushed_are_sent_again(valkey, make):
    limiter = make(valkey.url)
    fill(limiter, 10)
    valkey.client().script_flush()
    leases = limiter._leases
    assert leases.wait_for_answers(leases.call_all(), NEVER)
    assert limiter.try_acquire()
    assert leases.calls > 1


def test_a_ledger_that_was_lost_is_quarantined_and_its_leases_are_void(valkey, make):
    limit = Window(20, per=1, remote=False)
    first, second = make(valkey.url, limit), make(valkey.url, limit)
    users = Users(first, second)
    users.await_uses(0, 30)
    clients = [limiter._leases.client for limiter in (first, second)]
    held = [limiter.peek().lease.tokens for limiter in (first, second)]
    assert sum(held) > 0
    valkey.client().flushall()
    lost = time.monotonic()
    wait_until(lambda: first.peek().lease.tokens == second.peek().lease.tokens == 0, "void leases")
    users.await_uses(lost + TTL, 30)
    assert most_for_certain(1.0, users.end()) <= 20
    assert clients == [limiter._leases.client for limiter in (first, second)]


# -- processes

HOLDER = """
from headway.limiter.prefetch_options import Prefetch
limiter = make({limit!r}, prefetch=Prefetch(ttl={ttl}))
limiter.acquire(cost=20).cancel()
"""
LEASE = "?lease=0.5"
"""What vanished under a remote window comes back after a transit, to which the engine adds its lease of a permit."""
REMOTE_LIMIT = Window(20, per=0.5, remote=Remote(resolution=0, max_transit=0.2))


def test_tokens_of_a_killed_holder_come_back_after_its_ttl_and_a_gap(crew, valkey):
    limit = Window(20, per=1, remote=False)
    worker = crew.start(
        valkey.url,
        HOLDER.format(limit=limit, ttl=1)
        + """
for _ in range(20): assert limiter.try_acquire()
say(time.monotonic())
time.sleep(60)
""",
    )
    spent = float(worker.hear())
    worker.kill()
    other = Limiter(limit, name=crew.name, engine=valkey.url)
    assert other.acquire(cost=20, timeout=NEVER)
    # Its lease was 1 s, renewed at most a third of it later, and a gap.
    assert time.monotonic() - spent > 1.0


def test_a_process_that_was_stopped_past_its_lease_spends_nothing_of_it(crew, valkey):
    worker = crew.start(
        valkey.url,
        HOLDER.format(limit=Window(20, per=0.5), ttl=TTL)
        + """
bare = limiter.acquire()
gone = time.monotonic()
say("holds")
while True:
    now = time.monotonic()
    if now - gone > 1.0:
        break  # it was stopped
    gone = now
    time.sleep(0.001)
permit = limiter.try_acquire()
try:
    with bare: late = "entered"
except PermitExpired:
    late = "expired"
say("granted" if permit else "denied", late)
""",
    )
    assert worker.hear() == "holds"
    worker.stop()
    time.sleep(TTL + 1.5)
    worker.cont()
    assert worker.hear() == "denied expired"


def test_stopped_and_continued_processes_are_never_above_the_limit_at_use(crew, valkey):
    script = f"""
from headway.limiter.prefetch_options import Prefetch
limiter = make({REMOTE_LIMIT!r}, prefetch=Prefetch(ttl={TTL}))
say("begins")
while True:
    try:
        with limiter.hold(timeout=5) as permit:
            used = time.monotonic()
            permit.check()
            os.write(_audit, struct.pack("<dd", used, used))
    except (EngineUnavailable, RateLimited, PermitExpired):
        time.sleep(0.005)
"""
    workers = [crew.start(valkey.url + LEASE, script) for _ in range(3)]
    for worker in workers:
        worker.hear()
    for worker in workers:
        time.sleep(0.4)
        worker.stop()
        time.sleep(TTL + 0.7)
        worker.cont()
    calm = time.monotonic()
    wait_until(lambda: sum(use > calm for use in crew.uses()) > 40, "recovery")
    assert most_in_any(0.5, crew.uses()) <= 20


def test_clients_with_and_without_prefetch_share_one_ledger(crew, valkey):
    script = """
from headway.limiter.prefetch_options import Prefetch
limiter = make({limit!r}, prefetch={prefetch})
own = os.open({record!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def work():
    while True:
        try:
            with limiter.hold(timeout=5) as permit:
                used = time.monotonic()
                permit.check()
                os.write(_audit, struct.pack("<dd", used, used))
                os.write(own, b"x")
        except (EngineUnavailable, RateLimited, PermitExpired):
            time.sleep(0.005)
for _ in range(12): threading.Thread(target=work, daemon=True).start()
say("begins")
time.sleep(60)
"""
    records = [f"{crew.audit}-{number}" for number in range(2)]
    try:
        for record, prefetch in zip(records, (f"Prefetch(ttl={TTL})", False), strict=True):
            worker = crew.start(
                valkey.url + LEASE, script.format(limit=REMOTE_LIMIT, prefetch=prefetch, record=record)
            )
            worker.hear()
        time.sleep(4)
        for worker in crew.workers:
            worker.kill()
        counts = [Path(record).stat().st_size for record in records]
    finally:
        for record in records:
            Path(record).unlink()
    assert most_in_any(0.5, crew.uses()) <= 20
    assert min(counts) > 0.15 * sum(counts), counts


@pytest.mark.slow
def test_a_short_storm(make_server):
    """For a long one: python -m tests.redis.lease_storm --seconds 60."""
    outcome = storm(make_server().url, 2.5, seed=2, workers=3, calm=1.5)
    assert all(above <= 0 for above in outcome.above.values()), str(outcome)
    assert all(tail > 0.3 for tail in outcome.tail.values()), str(outcome)
    assert outcome.stops
