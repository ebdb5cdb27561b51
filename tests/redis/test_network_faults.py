# mypy: disable-error-code="assignment, attr-defined, union-attr"
"""A wire that misbehaves: answers dropped after the server acted, connections cut, answers that are late.

Every command is applied once. A grant that no caller hears of goes back: at once if its answer comes on the second
try, soon after if it does not.
"""

import asyncio
import itertools
import threading
import time
from collections import deque

import pytest
from hiredis import ReplyError

from headway import AllOf, Bucket, Concurrency, FixedWindow, Limiter, Remote, Spacing, Window
from headway.engines.redis.client.releases import PendingRelease
from headway.engines.redis.client.requests import Release
from headway.errors import EngineUnavailable
from headway.outcome import Outcome
from waiting import NEVER, SOON, wait_until

pytestmark = pytest.mark.realtime

# Each has ten, and none of them comes back while a test runs unless it is given back.
TEN = [
    Bucket("1/hour", burst=10),
    Window(10, per=60),
    Window(10, per=60, remote=Remote(max_transit=60)),
    FixedWindow(10, per="month"),
    Concurrency(10),
    AllOf("10/minute", "10 concurrent"),
]


def kind_of(limit):
    return limit.kind + ("-remote" if getattr(limit, "remote", None) else "")


@pytest.fixture
def proxy(valkey, make_proxy):
    return make_proxy(valkey)


class Ways:
    """The same verbs for threads and for tasks."""

    def __init__(self, loop):
        self.loop = loop

    def __call__(self, limiter, verb, *args, **options):
        if self.loop is None:
            return getattr(limiter, verb)(*args, **options)
        return self.loop.run_until_complete(getattr(limiter, f"{verb}_async")(*args, **options))


@pytest.fixture(params=["sync", "asyncio"])
def do(request):
    """do(limiter, "acquire", ...)"""
    if request.param == "sync":
        yield Ways(None)
        return
    with asyncio.Runner() as runner:
        yield Ways(runner.get_loop())


@pytest.mark.parametrize("limit", TEN, ids=kind_of)
def test_a_command_whose_answer_was_dropped_is_applied_once(proxy, name, do, limit):
    limiter = Limiter(limit, name=name, engine=f"{proxy.url}?lease=300", engine_timeout=5)
    permits = [do(limiter, "try_acquire")]
    for _ in range(9):
        proxy.drop_answers(1, only=b"EVALSHA")
        permits.append(do(limiter, "try_acquire"))
    assert proxy.dropped == 9
    assert all(permits)
    proxy.heal()
    assert not do(limiter, "try_acquire")
    for permit in permits:
        permit.cancel()


@pytest.mark.parametrize("limit", TEN, ids=kind_of)
@pytest.mark.parametrize("end", ["cancel", "settle"])
def test_an_end_whose_answer_was_dropped_is_applied_once(proxy, name, limit, end):
    """All ten are cancelled (or turn out to have cost nothing), while answers are lost: ten are there again."""
    limiter = Limiter(limit, name=name, engine=f"{proxy.url}?lease=300", engine_timeout=5)
    watch = Limiter(limit, name=name, engine=proxy._server.url)
    permits = [limiter.acquire() for _ in range(10)]
    for permit in permits:
        proxy.drop_answers(1, only=b"EVALSHA")
        permit.cancel() if end == "cancel" else permit.settle(0)
        time.sleep(0.01)
    proxy.heal()
    wait_until(lambda: watch.peek().remaining == 10, "all of them back")
    again = [limiter.try_acquire() for _ in range(11)]
    assert sum(map(bool, again)) == 10
    for permit in again[:10]:
        permit.cancel()


def test_completions_whose_answers_were_dropped_are_applied_once(proxy, name):
    limiter = Limiter("10 concurrent", name=name, engine=f"{proxy.url}?lease=300", engine_timeout=5)
    watch = Limiter("10 concurrent", name=name, engine=proxy._server.url)
    permits = [limiter.acquire() for _ in range(10)]  # some share a mark: ending one twice would end another
    for left in range(9, -1, -1):
        proxy.drop_answers(1, only=b"EVALSHA")
        permits.pop().complete()
        wait_until(lambda left=left: watch.peek().in_flight == left, f"{left} in flight")
        assert watch.peek().in_flight == left
    proxy.heal()


@pytest.mark.parametrize("limit", ["10 concurrent", "10/minute", "1/hour burst 10"])
def test_a_grant_with_a_late_answer_is_given_back(proxy, name, do, limit):
    """The answer is lost and the time is up: the caller hears of an unavailable engine, and the ledger gets it back."""
    limiter = Limiter(limit, name=name, engine=f"{proxy.url}?lease=300", engine_timeout=1)
    watch = Limiter(limit, name=name, engine=f"{proxy._server.url}?lease=300", engine_timeout=NEVER)
    do(limiter, "acquire").cancel()
    wait_until(lambda: watch.peek().remaining == 10, "a fresh ledger")
    do(limiter, "peek")  # the first end took the connection over, and this makes another
    proxy.delay(answers=2)
    with pytest.raises(EngineUnavailable):
        do(limiter, "acquire")
    assert watch.peek().remaining == 9
    proxy.heal()
    limiter._shared._engine.worker.wake()
    wait_until(lambda: watch.peek().remaining == 10, "the grant that no caller heard of")


def test_a_place_in_the_queue_with_a_late_answer_is_given_back(proxy, name, do):
    limiter = Limiter("1 concurrent", name=name, engine=f"{proxy.url}?lease=300", engine_timeout=1)
    watch = Limiter("1 concurrent", name=name, engine=proxy._server.url, engine_timeout=NEVER)
    held = watch.acquire()
    do(limiter, "peek")
    proxy.delay(answers=2)
    with pytest.raises(EngineUnavailable):
        do(limiter, "acquire")
    assert watch.peek().waiting == 1
    proxy.heal()
    limiter._shared._engine.worker.wake()
    wait_until(lambda: watch.peek().waiting == 0, "an empty queue")
    held.complete()


def test_cut_connections_are_not_noticed(proxy, valkey, name, do):
    limiter = Limiter("1000/minute", name=name, engine=f"{proxy.url}?lease=300", engine_timeout=2)
    client = valkey.client()
    for turn in range(20):
        assert do(limiter, "try_acquire")
        if turn % 2:
            proxy.cut()
        else:
            client.client_kill_filter(_type="normal", skipme=True)
    assert do(limiter, "peek").remaining == 980


def test_cuts_under_load_neither_lose_nor_mint(proxy, name):  # noqa: C901 - threads, tasks and a vandal
    """Threads and tasks at once, while connections are cut and answers dropped every few milliseconds. Some calls
    fail, as no connection can be made; but what was granted to them is there for others."""
    limiter = Limiter(Window(400, per=600), name=name, engine=f"{proxy.url}?lease=300", engine_timeout=5)
    granted, failed, done = [], [], threading.Event()

    def work():
        while True:
            try:
                if not limiter.try_acquire():
                    return
                granted.append(1)
            except EngineUnavailable:
                failed.append(1)

    async def work_async():
        async def one():
            while True:
                try:
                    if not await limiter.try_acquire_async():
                        return
                    granted.append(1)
                except EngineUnavailable:
                    failed.append(1)
                await asyncio.sleep(0)

        await asyncio.gather(*(one() for _ in range(20)))

    def vandal():
        while not done.is_set():
            before, patience = len(granted), time.monotonic() + 0.5
            proxy.drop_answers(2, only=b"EVALSHA")
            time.sleep(0.01)
            # On a busy machine no connection would be made between two cuts.
            while len(granted) == before and time.monotonic() < patience and not done.is_set():
                time.sleep(0.001)
            proxy.cut()

    threads = [threading.Thread(target=work) for _ in range(8)]
    threads.append(threading.Thread(target=lambda: asyncio.run(work_async())))
    breaker = threading.Thread(target=vandal)
    breaker.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(NEVER)
    done.set()
    breaker.join(NEVER)
    proxy.heal()
    assert proxy.dropped > 0
    worker = limiter._shared._engine.worker
    worker.wake()
    wait_until(lambda: not worker.unknown_outcomes and not worker._has_releases(), "everything cleared up")
    work()
    assert len(granted) == 400


def test_waiters_are_called_although_messages_are_lost(proxy, name):
    """The subscription is cut again and again: no waiter is forgotten or served twice, and all are served in order."""
    limiter = Limiter("1 concurrent", name=name, engine=f"{proxy.url}?lease=1", engine_timeout=2)
    order = []

    async def call(number):
        async with limiter:
            order.append(number)
            await asyncio.sleep(0.005)

    async def main():
        tasks = []
        for number in range(12):
            tasks.append(asyncio.create_task(call(number)))
            await asyncio.sleep(0.005)
        for _ in range(5):
            await asyncio.sleep(0.05)
            proxy.cut()
        async with asyncio.timeout(NEVER):
            await asyncio.gather(*tasks)
        await asyncio.sleep(0.1)
        return await limiter.peek_async()

    status = asyncio.run(main())
    assert sorted(order) == list(range(12))
    assert (status.in_flight, status.waiting) == (0, 0)


def test_late_answers_are_waited_for_and_no_longer(proxy, name, do):
    limiter = Limiter("100/minute", name=name, engine=f"{proxy.url}?lease=300", engine_timeout=1)
    do(limiter, "peek")
    proxy.delay(answers=0.3)
    assert do(limiter, "try_acquire")
    proxy.delay(answers=NEVER)
    begin = time.monotonic()
    with pytest.raises(EngineUnavailable):
        do(limiter, "try_acquire")
    assert 0.9 < time.monotonic() - begin < SOON
    proxy.heal()
    assert do(limiter, "try_acquire")


def test_a_strict_spacing_is_kept_over_a_slow_wire(proxy, name):
    limiter = Limiter(Spacing(0.1, expire_after=0.03), name=name, engine=proxy.url)
    proxy.delay(answers=0.01)
    times = []

    def work():
        for _ in range(3):
            limiter.acquire()
            times.append(time.monotonic())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(NEVER)
    times.sort()
    assert len(times) == 12
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.1


def test_an_end_that_is_refused_for_a_while_is_applied_once(make_server, name):
    """A server that is out of memory refuses to write. Asked for again and again, an end stays one."""
    server = make_server()
    limit = Window(10, per=60, remote=Remote(max_transit=60))
    limiter = Limiter(limit, name=name, engine=f"{server.url}?lease=0.6", engine_timeout=2)
    watch = Limiter(limit, name=name, engine=server.url)

    async def main():
        return await asyncio.gather(*(limiter.acquire_async() for _ in range(10)))

    permits = asyncio.run(
        main()
    )  # decided at one moment, so they share a mark: ending one twice ends another
    client = server.client()
    client.config_set("maxmemory", 1)
    permits.pop().complete()
    refusals = lambda: client.info("errorstats").get("errorstat_OOM", {"count": 0})["count"]  # noqa: E731
    wait_until(lambda: refusals() >= 6, "refusals")
    counted, begin = refusals(), time.monotonic()
    time.sleep(1)
    assert refusals() - counted <= 20 * (time.monotonic() - begin)
    client.config_set("maxmemory", 0)
    wait_until(lambda: watch.peek().in_flight < 10, "the end")
    time.sleep(1)  # for others that there must not be
    assert watch.peek().in_flight == 9
    for permit in permits:
        permit.cancel()


def test_an_end_that_is_refused_here_and_still_under_way_there_is_applied_once(valkey, name):
    """Its connection was cut with a copy on it, another copy met a server without the script, and the first arrives
    last. Permits of one moment have one mark, so that the second would be that of another."""
    limiter = Limiter("5000/hour", name=name, engine=valkey.url)
    cancelled, *_ = (limiter.try_acquire()._decision for _ in range(3))
    engine, ledger = limiter._shared._engine, cancelled.ledger
    pool = engine.pool_of(ledger)
    release = PendingRelease(Release(cancelled, Outcome.CANCEL))
    release.new_box().line_up(release, deque())
    connection = pool.take(0)
    limiter._shared.ledgers.registry.clock_samples.clear()  # or it would mostly be refused for its time
    late = release.payload(connection.ident)
    release.copies = 2
    release.answered(ReplyError("NOSCRIPT No matching script."))
    wait_until(lambda: engine.worker.wake() or limiter.peek().remaining == 4998, "one that came back")
    connection.call(late)
    pool.put_back(connection)
    assert limiter.peek().remaining == 4998


def test_a_refusal_that_is_lost_with_its_connection_does_not_lose_the_release(proxy, name, monkeypatch):
    """The second of three releases arrives too late and is refused, and no answer is read before the connection is cut.
    If the third had been applied, its number would hide that the second was not."""
    limiter = Limiter(Window(10, per=600), name=name, engine=f"{proxy.url}?lease=300", engine_timeout=NEVER)
    watch = Limiter(Window(10, per=600), name=name, engine=proxy._server.url)
    permits = [limiter.acquire() for _ in range(3)]
    payload = PendingRelease.payload

    def late(release, ident):
        composed = payload(release, ident)
        if release.number == 2 and release.copies == 1:
            time.sleep(0.5)
        return composed

    monkeypatch.setattr(PendingRelease, "payload", late)
    proxy.delay(answers=NEVER)
    posts = limiter._shared._engine.pools()[0].release_sender
    for posted, permit in enumerate(permits, 1):
        permit.cancel()
        wait_until(
            lambda posted=posted: len(posts.unheard) == posted and posts.unheard[-1].written,
            "a posted release",
        )
    time.sleep(0.2)  # the server has read all of them
    assert watch.peek().remaining == 8
    proxy.heal()
    proxy.cut()
    wait_until(lambda: watch.peek().remaining == 10, "all of them back")


@pytest.fixture
def lasting(make_server):
    """A server that comes back as it was."""
    return make_server(appendonly="yes", appendfsync="always")


@pytest.mark.parametrize("limit", TEN, ids=kind_of)
def test_ends_that_were_under_way_when_the_server_restarted_are_applied(lasting, name, limit):
    """All are written again, and refused, as the script is not known any more. Those that are then said anew must not
    overtake those of which it is still to be found out what has become."""
    limiter = Limiter(limit, name=name, engine=f"{lasting.url}?lease=300", engine_timeout=2)
    first, *permits = (limiter.try_acquire() for _ in range(10))
    first.cancel()
    wait_until(lambda: limiter.peek().remaining == 1, "the first")
    lasting.stop()
    for permit in permits[:6]:
        permit.cancel()
        time.sleep(0.02)  # or they would travel together
    lasting.kill()
    lasting.restart()
    wait_until(lambda: limiter.peek().remaining == 7, "six more")
    for permit in permits[6:]:
        permit.cancel()


def test_releases_are_not_lost_when_another_client_meets_the_restarted_server_first(
    lasting, name, monkeypatch
):
    """A restarted server refuses releases until a client says that its ledger is complete. Here another client does so
    between two releases that are written again: the second must not be applied before the first."""
    limit = Window(10, per=60)
    limiter = Limiter(limit, name=name, engine=f"{lasting.url}?lease=300", engine_timeout=2)
    other = Limiter(limit, name=name, engine=lasting.url, engine_timeout=SOON)
    first, *permits = (limiter.try_acquire() for _ in range(10))
    first.cancel()
    wait_until(lambda: other.peek().remaining == 1, "the first")
    written_again, payload = [], PendingRelease.payload

    def slowly(release, ident):
        if release.copies > 1:
            written_again.append(release)
        if len(written_again) == 2:
            time.sleep(0.1)  # the server has read the first one
            other.peek()
        return payload(release, ident)

    monkeypatch.setattr(PendingRelease, "payload", slowly)
    lasting.stop()
    for permit in permits[:3]:
        permit.cancel()
        time.sleep(0.02)
    lasting.kill()
    lasting.restart()
    wait_until(lambda: written_again and other.peek().remaining == 4, "three more")
    for permit in permits[3:]:
        permit.cancel()


def test_a_release_that_was_refused_is_retried_long_before_the_lease_ends(make_server, name):
    """A server that does not write for a moment: the first retries come soon, whatever the lease."""
    server = make_server()
    limiter = Limiter("10 concurrent", name=name, engine=f"{server.url}?lease=300", engine_timeout=2)
    # By another engine: a question that waits behind a retry is refused with it.
    watch = Limiter("10 concurrent", name=name, engine=server.url, engine_timeout=2)
    permit = limiter.acquire()
    client = server.client()
    client.config_set("min-replicas-to-write", 1)
    permit.complete()
    refusals = lambda: client.info("errorstats").get("errorstat_NOREPLICAS", {"count": 0})["count"]  # noqa: E731
    wait_until(lambda: refusals() >= 6, "refusals")
    client.config_set("min-replicas-to-write", 0)
    wait_until(lambda: watch.peek().in_flight == 0, "the release")


def test_a_place_given_back_when_the_server_restarted_is_not_called(lasting, name):
    """As above: it may be a place in the queue that was given back."""
    limiter = Limiter("1 concurrent", name=name, engine=f"{lasting.url}?lease=300", engine_timeout=2)
    permit = limiter.acquire()

    async def leave():
        task = asyncio.create_task(limiter.acquire_async())
        await asyncio.to_thread(wait_until, lambda: limiter.peek().waiting, "one waiter")
        lasting.stop()
        task.cancel()
        await asyncio.sleep(0.1)

    asyncio.run(leave())
    lasting.kill()
    lasting.restart()
    wait_until(lambda: not limiter.peek().waiting, "no waiter")
    permit.complete()
    limiter.acquire(timeout=NEVER).complete()
