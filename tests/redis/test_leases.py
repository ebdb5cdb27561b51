# mypy: disable-error-code="union-attr, func-returns-value"
"""Clients that hold tokens of a limit that others take single permits of, on one ledger."""

import asyncio
import tempfile
import threading
import time
from struct import unpack_from

import pytest
from tests.redis.lease_clients import SECOND, LeaseClient, end, most_in, take
from tests.redis.servers import eventually

from headway import Bucket, Concurrency, FixedWindow, InvalidLimit, Limiter, RateLimited, Window
from headway.clock import SYSTEM
from headway.core.lease import Sync as Call
from headway.core.limits import AllOf, Spacing
from headway.core.remote import Remote
from headway.engines.base import LimiterTerms, Sync
from headway.errors import EngineUnavailable
from waiting import NEVER

pytestmark = pytest.mark.realtime

TWENTY = Window(20, per=1, remote=False)
KINDS = {
    "window": TWENTY,
    "held": Window(20, per=1, remote=Remote(max_transit=1)),
    "bucket": Bucket("20/s", burst=20),
    "fixed window": FixedWindow(20, per="day"),
    "concurrency": Concurrency(20),
}


@pytest.fixture(params=["valkey", "embedded"])
def engine(request, connect):
    """A shared engine on a server, and one that a process brings along."""
    if request.param == "valkey":
        yield connect(request.getfixturevalue("valkey").url)
    else:
        with tempfile.TemporaryDirectory(prefix="headway-", ignore_cleanup_errors=True) as home:
            embedded = connect(f"embedded://{home}")
            yield embedded
            embedded.close()


def format_of(server, name):
    return unpack_from("<d", server.client().hget(f"headway:{{{name}}}", "m"))[0]


def test_holders_and_a_direct_client_share_a_window_and_never_exceed_it(engine, name):
    holders = [LeaseClient(engine, TWENTY, name, client) for client in ("A", "B")]
    direct = Limiter(TWENTY, name=name, engine=engine, engine_timeout=2)
    uses, until = [], time.monotonic() + 5
    turn = 0
    while time.monotonic() < until:
        turn += 1
        for holder in holders:
            holder.step()
            holder.use()
        # It asks for a third of what the two do.
        if turn % 3 == 0:
            before = SYSTEM.now()
            if direct.try_acquire():
                uses.append((before / SECOND, SYSTEM.now() / SECOND))
        time.sleep(0.004)
    spent = [use for holder in holders for use in holder.uses]
    assert most_in(spent + uses, 0.998) <= 20
    assert all(len(holder.uses) >= 10 for holder in holders)
    assert len(uses) >= 5
    assert len(spent) + len(uses) >= 60
    direct.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_lent_is_not_granted_and_comes_back_when_it_is_handed_back(kind, valkey, connect, name):
    limit = KINDS[kind]
    engine = connect(valkey.url)
    client = LeaseClient(engine, limit, name, "A", ttl=30 * SECOND)
    (answer,) = client.sync(want=60)
    held = sum(count for count, _ in answer.tokens)
    assert held == client.held[0] == 20
    assert answer.ttl == 30 * SECOND
    assert format_of(valkey, name) == 2
    direct = Limiter(limit, name=name, engine=engine, engine_timeout=2)
    assert not direct.try_acquire()
    assert direct.peek().remaining == 0
    client.sync(close=True)
    assert format_of(valkey, name) == 1
    permits = take(direct, 21)
    assert len(permits) == 20
    end(permits)
    direct.close()


def test_a_client_without_leases_finds_out_that_there_are_some(valkey, connect, name):
    """The script without leases refuses, and the command is sent again by the other one."""
    direct = Limiter(TWENTY, name=name, engine=connect(valkey.url), engine_timeout=2)
    permit = direct.acquire()
    other = connect(valkey.url + "?lease=9")
    client = LeaseClient(other, TWENTY, name, "A", ttl=60 * SECOND)
    client.sync(want=40)
    assert client.held == [20]
    # 19 were free, and one cools that this process has just spent.
    assert not direct.try_acquire()
    permit.complete()
    client.sync(close=True)
    assert direct.try_acquire()
    direct.close()


@pytest.mark.parametrize("kind", ["window", "bucket"])
def test_the_tokens_of_a_client_that_vanished_come_back_after_its_lease_and_a_window(kind, engine, name):
    limit = KINDS[kind]
    client = LeaseClient(engine, limit, name, "A", ttl=SECOND)
    client.want(60)
    before = time.monotonic()
    client.sync()
    after = time.monotonic()
    assert client.held == [20]
    direct = Limiter(limit, name=name, engine=engine, engine_timeout=2)
    permit = direct.acquire(timeout=NEVER)
    waited = time.monotonic()
    # The lease of 1 s, and then a second (of a bucket: the time in which one of its permits is earned).
    assert permit
    assert waited - after >= (1.98 if kind == "window" else 1.03)
    assert waited - before < NEVER
    (late,) = client.sync()
    assert late.void
    assert client.held == [0]
    direct.close()


def test_a_waiter_is_served_as_soon_as_tokens_are_handed_back(valkey, connect, name):
    engine = connect(valkey.url)
    limit = Bucket("20/s", burst=20)
    client = LeaseClient(engine, limit, name, "A", ttl=60 * SECOND)
    client.want(2000)
    client.sync()
    direct = Limiter(limit, name=name, engine=engine, engine_timeout=2)
    got: list[float] = []
    thread = threading.Thread(target=lambda: (direct.acquire(timeout=NEVER), got.append(time.monotonic())))
    thread.start()
    eventually(lambda: direct.peek().waiting, "a waiter")
    client.sync()
    assert client.holders[0].recall > 0
    assert not got
    client.sync()  # hands back what was recalled
    thread.join(NEVER)
    assert got
    direct.close()


def test_nothing_is_promised_while_tokens_are_lent(valkey, connect, name):
    engine = connect(valkey.url)
    limit = Bucket("20/s", burst=20)
    client = LeaseClient(engine, limit, name, "A", ttl=60 * SECOND)
    client.sync(want=4)
    direct = Limiter(limit, name=name, engine=engine, engine_timeout=2)
    # What lies here can be reserved for now; more than that could only be promised if no client came for it.
    while direct.try_acquire():
        pass
    with pytest.raises(RateLimited) as refused:
        direct.reserve()
    assert 0 < refused.value.retry_after <= 20.1
    assert direct.peek().waiting == 0
    client.sync(close=True)
    direct.reserve().cancel()
    direct.close()


def test_a_list_of_leases_that_was_evicted_is_a_loss(valkey, connect, name):
    for lost in ("l1", "e1"):
        client = LeaseClient(connect(valkey.url), TWENTY, f"{name}-{lost}", "A", ttl=SECOND)
        client.sync(want=20)
        valkey.client().delete(f"headway:{{{name}-{lost}}}:{lost}")
        (answer,) = client.sync(want=20)
        assert answer.void
        assert client.synced.quarantined_ns > SECOND


def test_scripts_that_the_server_has_forgotten_are_loaded_again(valkey, connect, name):
    client = LeaseClient(connect(valkey.url), TWENTY, name, "A", ttl=30 * SECOND)
    client.want(60)
    client.sync()
    valkey.client().script_flush()
    client.sync()
    assert client.held == [20]


def test_a_call_whose_answers_are_lost_is_heard_once(valkey, make_proxy, connect, name):
    proxy = make_proxy(valkey)
    client = LeaseClient(
        connect(proxy.url, timeout=0.3), TWENTY, name, "A", ttl=60 * SECOND, timeout=SECOND // 3
    )
    client.want(10)
    client.sync()
    (held,) = client.held
    client.want(30)
    # The server hears it, and no answer arrives before the time-out.
    proxy.drop_answers(50, only=b"EVALSHA", cut=False)
    with pytest.raises(EngineUnavailable):
        client.sync()
    proxy.heal()
    pending = client.holders[0].pending
    assert pending is not None
    (answer,) = client.sync()
    assert (answer.seq, answer.attempt) == (pending.seq, 0)
    assert client.holders[0].pending is None
    assert held + sum(count for count, _ in answer.tokens) == client.held[0]
    rows = client.synced.rows()
    assert rows[0][1] + client.held[0] == 20


def test_a_call_that_is_older_than_one_that_was_heard_has_no_answer(valkey, connect, name):
    client = LeaseClient(connect(valkey.url), TWENTY, name, "A", ttl=30 * SECOND)
    first = Call("A", 1, 0, 0, 5000, 0)
    (answer,) = client.send((first,))
    (renewed,) = client.send((Call("A", 2, 0, answer.lease, 5000, 8),))
    assert client.send((first,)) == (None,)
    (again,) = client.send((Call("A", 2, 1, answer.lease, 5000, 8),))
    assert again == renewed


def test_spans_are_stretched_on_both_ways_and_rounded_up(valkey, connect, name):
    limit = Window(20, per=7200, remote=False)
    client = LeaseClient(connect(valkey.url), limit, name, "A", ttl=60 * SECOND)
    (answer,) = client.send((Call("A", 1, 0, 0, 20_000, 0),))
    assert answer.tokens == ((20, 0),)
    before = SYSTEM.now()
    client.send((Call("A", 2, 0, answer.lease, 0, 17, ((3, 3600 * SECOND + 1),)),))
    (back,) = client.send((Call("A", 3, 0, answer.lease, 20_000, 17),))
    passed = SYSTEM.now() - before
    ((count, after),) = back.tokens
    assert count == 3
    # 1000 ppm on the way in, as much on the way out, and a tick for the two readings of the ledger's clock.
    inside = 3600 * SECOND * 1.001
    assert (inside - passed) / 0.999 < after < (inside + 3000) / 0.999


def test_a_lower_limit_is_recalled(valkey, connect, name):
    engine = connect(valkey.url)
    client = LeaseClient(engine, TWENTY, name, "A", ttl=60 * SECOND)
    client.sync(want=60)
    assert client.held == [20]
    direct = Limiter(TWENTY, name=name, engine=connect(valkey.url + "?lease=9"), engine_timeout=2)
    direct.set_limit(Window(5, per=1, remote=False))
    assert direct.peek().remaining == 0
    (answer,) = client.sync(want=60)
    assert answer.recall == 15
    client.sync(want=60)
    assert 1 <= client.held[0] <= 5
    # What was recalled was idle, and as much as the ledger lacked is gone with the old limit.
    assert len(take(direct, 8)) + client.held[0] == 5
    direct.close()


def test_ends_of_permits_are_heard_that_were_taken_before_there_were_leases(valkey, connect, name):
    limit = Concurrency(20)
    direct = Limiter(limit, name=name, engine=connect(valkey.url + "?lease=100"), engine_timeout=2)
    permits = take(direct, 5)
    client = LeaseClient(connect(valkey.url + "?lease=9"), limit, name, "A", ttl=60 * SECOND)
    client.sync(want=60)
    assert client.held == [15]
    end(permits)

    def in_flight():
        client.sync(want=60)
        return client.synced.rows()[0][5]

    eventually(lambda: in_flight() == 0, "the end of all permits")
    direct.close()


@pytest.mark.parametrize("kind", ["bucket", "concurrency", "fixed window", "held"])
def test_another_limit_keeps_what_is_lent(kind, valkey, connect, name):
    limit = KINDS[kind]
    lower = {
        "bucket": Bucket("5/s", burst=5),
        "concurrency": Concurrency(5),
        "fixed window": FixedWindow(5, per="day"),
        "held": Window(5, per=1, remote=Remote(max_transit=1)),
    }[kind]
    engine = connect(valkey.url)
    client = LeaseClient(engine, limit, name, "A", ttl=60 * SECOND)
    client.sync(want=60)
    assert client.held == [20]
    direct = Limiter(limit, name=name, engine=connect(valkey.url + "?lease=9"), engine_timeout=2)
    direct.set_limit(lower)
    assert not direct.try_acquire()
    client.sync(want=60)
    client.sync(want=60)
    assert 1 <= client.held[0] <= 5
    client.sync(close=True)
    permits = take(direct, 8)
    assert len(permits) == 5
    end(permits)
    direct.close()


@pytest.mark.parametrize("kind", KINDS)
def test_reset_makes_new_what_is_not_lent(kind, valkey, connect, name):
    limit = KINDS[kind]
    engine = connect(valkey.url)
    direct = Limiter(limit, name=name, engine=engine, engine_timeout=2)
    client = LeaseClient(engine, limit, name, "A", ttl=60 * SECOND)
    (answer,) = client.send((Call("A", 1, 0, 0, 4_000, 0),))
    held = sum(count for count, _ in answer.tokens)
    assert 4 <= held <= 8
    for _ in range(2):
        permits = take(direct, 22 - held)
        assert len(permits) == 20 - held
        direct.reset()
        end(permits)
    # The lease is as it was.
    (renewed,) = client.send((Call("A", 2, 0, answer.lease, 4_000, held),))
    assert renewed.lease == answer.lease
    direct.close()


def test_after_a_flush_leases_are_void_and_the_quarantine_is_as_long_as_they_were(valkey, connect, name):
    client = LeaseClient(connect(valkey.url), TWENTY, name, "A", ttl=2 * SECOND)
    client.want(60)
    client.sync()
    assert client.held == [20]
    valkey.client().flushall()
    (answer,) = client.sync()
    assert answer.void
    assert client.held == [0]
    assert client.synced.reason() == "quarantine"
    # A lease, a window, the time in which a single permit may still be spent, and a margin.
    assert client.synced.quarantined_ns >= 3 * SECOND
    client.want(60)
    (second,) = client.sync()
    assert second.lease
    assert not second.tokens
    assert client.synced.quarantined_ns - SECOND < second.again <= client.synced.quarantined_ns
    assert client.quarantines


def test_a_direct_client_that_notices_a_loss_waits_for_leases_too(valkey, connect, name):
    direct = Limiter(TWENTY, name=name, engine=connect(valkey.url + "?lease=3"), engine_timeout=2)
    direct.try_acquire()
    client = LeaseClient(connect(valkey.url), TWENTY, name, "A", ttl=50 * SECOND)
    client.want(60)
    client.sync()
    direct.try_acquire()
    valkey.client().flushall()
    refused = direct.try_acquire()
    assert not refused
    assert refused.retry_after > 50
    direct.close()


def test_a_pause_is_told_and_tokens_move_meanwhile(valkey, connect, name):
    engine = connect(valkey.url)
    direct = Limiter(TWENTY, name=name, engine=engine, engine_timeout=2)
    direct.pause(30)
    client = LeaseClient(engine, TWENTY, name, "A", ttl=60 * SECOND)
    client.want(60)
    client.sync()
    assert client.held == [20]
    assert 29 * SECOND < client.synced.paused_ns < 31 * SECOND
    assert client.synced.reason() == "paused"
    direct.close()


def test_several_rules_are_lent_each_on_its_own(valkey, connect, name):
    limit = AllOf(TWENTY, Concurrency(4))
    engine = connect(valkey.url)
    client = LeaseClient(engine, limit, name, "A", ttl=60 * SECOND)
    client.sync(want=60)
    assert client.held == [20, 4]
    direct = Limiter(limit, name=name, engine=engine, engine_timeout=2)
    assert not direct.try_acquire()
    now = SYSTEM.now()
    call = client.holders[1].close(now)
    client.send((None, call))
    assert client.synced.answers[0] is None
    assert client.synced.answers[1].lease == 0
    assert [row[1] for row in client.synced.rows()] == [0, 4]
    direct.close()


def test_a_spacing_is_not_lent(valkey, connect, name):
    engine = connect(valkey.url)
    limit = Spacing("250ms")
    ledgers = engine.open(
        LimiterTerms(
            name, SYSTEM, str(limit), (None,), engine.rules_of(limit), None, SECOND, "trust", None, print
        )
    )
    with pytest.raises(InvalidLimit, match="one slot at a time"):
        ledgers.send(Sync((None,), (Call("A", 1, 0, 0, 1000, 0),), SECOND, SECOND))


METRICS = {"calls": TWENTY, "tokens": Bucket("100/s", burst=100)}


def test_metrics_are_lent_for_each_key(valkey, connect, name):
    engine = connect(valkey.url)
    alice, bob = (
        LeaseClient(engine, METRICS, name, "A", ttl=60 * SECOND, key=key) for key in ("alice", "bob")
    )
    direct = Limiter(METRICS, name=name, engine=engine, engine_timeout=2)
    cost = {"calls": 1, "tokens": 30}
    alice.sync(want=50)
    assert alice.held[0] == 20
    assert alice.held[1] >= 50
    bob.sync(want=10)
    assert format_of(valkey, name) == 2
    assert not direct.try_acquire({"calls": "alice", "tokens": "alice"}, cost=cost)
    assert direct.try_acquire({"calls": "bob", "tokens": "bob"}, cost=cost)
    assert direct.try_acquire({"calls": "carol", "tokens": "carol"}, cost=cost)
    alice.sync(close=True)
    # Bob's are still lent.
    assert format_of(valkey, name) == 2
    assert direct.try_acquire({"calls": "alice", "tokens": "alice"}, cost=cost)
    bob.sync(close=True)
    assert format_of(valkey, name) == 1
    keys = valkey.client().keys(f"headway:{{{name}}}*")
    assert all(valkey.client().pttl(key) > 0 for key in keys)
    direct.close()


def test_all_that_is_stored_of_a_lease_lives_until_its_tokens_are_harmless(valkey, connect, name):
    limit = Window(20, per="minute", remote=False)
    client = LeaseClient(connect(valkey.url), limit, name, "A", ttl=100 * SECOND)
    client.sync(want=20)
    stored = valkey.client()
    keys = [f"headway:{{{name}}}{end}" for end in ("", ":l1", ":e1")]
    # The lease, a window after it, and a grace.
    assert all(215_000 < stored.pttl(key) < 225_000 for key in keys)
    client.sync(close=True)
    client.sync(want=20)
    assert all(stored.pttl(key) > 215_000 for key in keys)


@pytest.mark.slow
def test_a_cluster_lends(cluster, connect, name):
    check_lending(connect(cluster.url), name)


@pytest.mark.slow
def test_servers_behind_sentinels_lend(make_sentinels, connect, name):
    check_lending(connect(make_sentinels().url), name)


def check_lending(engine, name):
    for key in ("alice", "bob", "carol"):
        client = LeaseClient(engine, TWENTY, name, "A", ttl=60 * SECOND, key=key)
        client.sync(want=60)
        assert client.held == [20]
        direct = Limiter(TWENTY, name=name, engine=engine, engine_timeout=2)
        assert not direct.try_acquire(key)
        client.sync(close=True)
        assert len([permit for permit in (direct.try_acquire(key) for _ in range(22)) if permit]) == 20
        direct.close()


def test_a_task_sends_the_same_call(valkey, connect, name):
    client = LeaseClient(connect(valkey.url), TWENTY, name, "A", ttl=60 * SECOND)
    command = Sync((None,), (Call("A", 1, 0, 0, 5_000, 0),), 60 * SECOND, SECOND)

    async def send():
        before = SYSTEM.now()
        synced = await client.ledgers.send_async(command, asyncio.get_running_loop())
        return before, synced, SYSTEM.now()

    before, synced, after = asyncio.run(send())
    (answer,) = synced.answers
    assert answer.lease
    assert before <= synced.sent_ns <= after


def test_leases_of_an_epoch_that_is_over_do_not_come_back(valkey, connect, name):
    """A slot that migrates, or a replica that is promoted, may bring them after the ledger has begun anew."""
    client = LeaseClient(connect(valkey.url), TWENTY, name, "A", ttl=SECOND // 2)
    client.sync(want=20)
    assert client.held == [20]
    stored = valkey.client()
    keys = [f"headway:{{{name}}}{end}" for end in (":l1", ":e1")]
    kept = [stored.dump(key) for key in keys]
    stored.flushall()
    (answer,) = client.sync(want=20)
    assert answer.void
    for key, value in zip(keys, kept, strict=True):
        stored.restore(key, 0, value, replace=True)
    eventually(lambda: client.sync(want=20) and client.held[0] > 0, "tokens, after the quarantine")
    assert client.held == [20]
    assert client.synced.rows()[0][1] == 0
