"""Limits that change while they are used: what was taken stays taken, and the newest limit governs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from tests.redis.servers import eventually

import headway
from core.script_traces import START
from headway.core.remote import Remote
from headway.engines.redis.client.reconfigure import reconfigure
from headway.engines.redis.engine import Engine
from headway.engines.redis.net.acl import acl_line
from headway.engines.redis.net.address import read_address
from headway.engines.redis.script.scripts import plain_script
from headway.errors import LimitMismatch
from waiting import NEVER


class NoAnchors(dict[bytes, object]):
    """Where the server's clock must be is not known: here it does not run with ours, and that is no loss."""

    def __setitem__(self, ident, sample):
        pass


class World:
    """Limiters on one server, in a time that only the test moves."""

    def __init__(self, server):
        self.engine = Engine(read_address(server.url))
        self.client = server.client()
        self.limiters: list[headway.Limiter] = []
        self.now = 0.0
        self.move(0)

    def limiter(self, limit, name="api", **options):
        limiter = headway.Limiter(limit, name=name, engine=self.engine, **options)
        limiter._shared.ledgers.registry.clock_samples = NoAnchors()  # type: ignore[union-attr]
        self.limiters.append(limiter)
        return limiter

    def move(self, seconds):
        """Later, on the server's clock."""
        self.now += seconds
        self.engine.fixed_time = float(START + round(self.now * 1e6))

    def drain(self, limiter, key=None, **options):
        """Take one by one what there is."""
        taken = 0
        while limiter.try_acquire(key, **options):
            taken += 1
        return taken

    def close(self):
        for limiter in self.limiters:
            limiter.close()
        self.engine.close()
        # Or it might miss, in the next test's empty server, what was reserved in this one.
        eventually(lambda: self.engine.worker._thread is None, "the end of the background worker")


@pytest.fixture
def world(server):
    world = World(server)
    yield world
    world.close()


def send(client, packed):
    """A command as it travels, sent by another client; the server knows the scripts."""
    for name in ("dump", "reconfigure"):
        client.script_load(plain_script(name).text)
    _, *parts = packed.split(b"\r\n$")
    return client.execute_command(*[part.partition(b"\r\n")[2].removesuffix(b"\r\n") for part in parts])


def most_in(grants, width):
    """The most that any window of this width has seen; as long as a tick short of it, as the ends do not meet."""
    return max(sum(cost for at, cost in grants if start <= at < start + width - 1e-9) for start, _ in grants)


def hammer(world, limiters, seconds, dice):
    """Every limiter takes what there is, for a while: [(when, cost)]."""
    grants, end = [], world.now + seconds
    while world.now < end:
        world.move(dice.choice((0.001, 0.02, 0.11)))
        for limiter in dice.sample(limiters, len(limiters)):
            cost = dice.randint(1, 3)
            if limiter.try_acquire(cost=cost):
                grants.append((round(world.now, 6), cost))
    return grants


@pytest.mark.parametrize("seed", range(4))
def test_after_a_change_no_window_has_more_than_the_new_limit(seed, world) -> None:
    dice = Random(seed)
    limiter = world.limiter("10/s")
    before = hammer(world, [limiter], 2.5, dice)
    assert 8 <= most_in(before, 1) <= 10
    limiter.set_limit("5/s")
    assert 4 <= most_in(hammer(world, [limiter], 4, dice), 1) <= 5
    limiter.set_limit("20/s")
    assert 15 <= most_in(hammer(world, [limiter], 4, dice), 1) <= 20


def test_what_was_taken_stays_taken(world) -> None:
    limiter = world.limiter("10/s")
    assert world.drain(limiter) == 10
    limiter.set_limit("15/s")
    assert world.drain(limiter) == 5
    world.move(0.5)
    limiter.set_limit("4/s")
    assert world.drain(limiter) == 0
    world.move(0.499_999)
    assert world.drain(limiter) == 0
    world.move(0.000_001)
    assert world.drain(limiter) == 4


def test_uses_that_were_over_before_the_change_do_not_count(world) -> None:
    limiter = world.limiter("10/s burst 10")
    assert world.drain(limiter) == 10
    world.move(50)
    limiter.set_limit("10/hour burst 10")
    assert world.drain(limiter) == 10
    assert world.drain(limiter) == 0


@pytest.mark.parametrize("seed", range(3))
def test_old_and_new_side_by_side_keep_what_was_declared_last(seed, world) -> None:
    dice = Random(seed)
    old = world.limiter("10/s")
    hammer(world, [old], 1.5, dice)
    new = world.limiter("5/s")
    new.peek()
    assert 4 <= most_in(hammer(world, [old, new], 5, dice), 1) <= 5
    assert 4 <= most_in(hammer(world, [old], 3, dice), 1) <= 5
    old.set_limit("8/s")
    old.peek()
    assert 6 <= most_in(hammer(world, [old, new], 5, dice), 1) <= 8
    assert world.client.hget("headway:{api}", "l") == b"8/s"


@pytest.mark.parametrize("to", [None, Remote(max_transit=2)])
def test_a_window_may_begin_or_cease_to_wait_for_answers(to, world) -> None:
    first = world.limiter("6/s", remote=None if to else Remote(max_transit=2))
    held = [first.try_acquire() for _ in range(2)]
    second = world.limiter("6/s", remote=to)
    held += [second.try_acquire() for _ in range(4)]
    assert all(held)
    assert not second.try_acquire()
    for permit in held:
        permit.complete()
    eventually(lambda: second.peek().in_flight == 0, "hand-backs")
    world.move(0.99)
    assert not second.try_acquire()
    world.move(0.1)
    assert second.peek().remaining == 6


def test_every_key_changes_when_it_is_used(world) -> None:
    limiter = world.limiter("10/s")
    for key in ("alice", "bob"):
        assert world.drain(limiter, key) == 10
    limiter.set_limit("12/s")
    assert world.drain(limiter, "alice") == 2
    world.move(1)
    assert [world.drain(limiter, key) for key in ("alice", "bob", "carol")] == [12, 12, 12]


def test_metrics_change_together(world) -> None:
    limiter = world.limiter({"requests": "10/s", "tokens": "100/s burst 100"})
    keys = {"requests": "alice", "tokens": "acme"}
    assert world.drain(limiter, keys, cost={"requests": 1, "tokens": 20}) == 5
    limiter.set_limit({"requests": "7/s", "tokens": "200/s burst 200"})
    # 5 of 7 requests are gone; what is owed, 100 tokens, is paid back at twice the rate.
    assert world.drain(limiter, keys, cost={"requests": 1, "tokens": 0}) == 2
    world.move(0.25)
    assert limiter.try_acquire(keys, cost={"requests": 0, "tokens": 150})
    assert not limiter.try_acquire(keys, cost={"requests": 0, "tokens": 1})
    other = {"requests": "bob", "tokens": "acme"}
    assert world.drain(limiter, other, cost={"requests": 1, "tokens": 0}) == 7


@pytest.mark.parametrize(("limit", "least"), [("12/minute burst 1", 35), ("3/minute burst 1", 80)])
def test_reserved_slots_are_kept_clear_of(limit, least, world) -> None:
    limiter = world.limiter("6/minute burst 1")
    slots = [limiter.reserve().delay for _ in range(4)]
    assert slots == pytest.approx([0, 10, 20, 30], abs=0.1)
    # Four permits are owed, as they were; and the slot at 30 s is somebody's.
    limiter.set_limit(limit)
    assert limiter.reserve().delay == pytest.approx(least, abs=0.2)


@pytest.mark.realtime
def test_a_sleeper_wakes_at_its_promised_time_although_the_limit_changed(server) -> None:
    engine = Engine(read_address(server.url))
    limiter = headway.Limiter("10/s burst 1", name="api", engine=engine)
    begin = time.monotonic()
    limiter.acquire()
    permit = limiter.reserve()
    told = permit.delay
    limiter.set_limit("20/s burst 1")
    assert permit.delay <= told
    permit.wait()
    assert time.monotonic() - begin >= 0.1
    # After the slot that was promised, and not after the moment at which a busy machine let us wake.
    limiter.acquire()
    assert time.monotonic() - begin >= 0.15
    limiter.close()
    engine.close()


def test_slots_of_a_spacing_stay_apart(world) -> None:
    limiter = world.limiter(headway.Spacing(10, expire_after=0.5))
    slots = [limiter.reserve().delay for _ in range(3)]
    limiter.set_limit(headway.Spacing(4, expire_after=0.25))
    slots += [limiter.reserve().delay for _ in range(2)]
    assert slots == pytest.approx([0, 10.5, 21, 25.5, 29.75], abs=0.2)


def test_fewer_at_a_time_than_are_out(world) -> None:
    limiter = world.limiter("5 concurrent")
    held = [limiter.try_acquire() for _ in range(5)]
    world.move(0.001)  # as it does: a lease that is renewed is noted under a time that was nobody's
    limiter.set_limit("2 concurrent")
    for left in (4, 3, 2):
        assert not limiter.try_acquire()
        held.pop().complete()
        eventually(lambda left=left: limiter.peek().in_flight == left, "a hand-back")
    assert not limiter.try_acquire()
    held.pop().complete()
    last = eventually(limiter.try_acquire, "a permit")
    assert not limiter.try_acquire()
    for permit in (*held, last):
        permit.complete()


def test_a_calendar_quota_goes_on_in_the_period_of_the_new_one(world) -> None:
    assert world.drain(world.limiter("10/day aligned")) == 10
    limiter = world.limiter("12/hour aligned")
    assert world.drain(limiter) == 2
    world.move(3600)
    assert world.drain(limiter) == 12


def test_a_calendar_quota_can_be_changed(world) -> None:
    limiter = world.limiter("10/day aligned")
    assert world.drain(limiter) == 10
    limiter.set_limit("12/day aligned")
    assert world.drain(limiter) == 2


def test_an_older_version_goes_by_the_calendar_of_the_newer(world) -> None:
    old = world.limiter("10/hour aligned")
    assert world.drain(old) == 10
    new = world.limiter("12/day aligned")
    assert world.drain(new) == 2
    for _ in range(3):
        # The first command of a new day begins it, and it is a day for both limiters.
        world.move(86_400)
        assert world.drain(old) == 12
        world.move(3_600)
        assert (world.drain(old), world.drain(new)) == (0, 0)


def test_another_kind_is_refused_and_both_are_named(world) -> None:
    world.limiter("10/s").try_acquire()
    with pytest.raises(LimitMismatch, match="'10/s', not as '5 concurrent'"):
        world.limiter("5 concurrent").try_acquire()
    world.limiter("10/s; 100/minute", name="two").try_acquire()
    with pytest.raises(LimitMismatch, match="'10/s; 100/minute', not as '20/s burst 20; 200/minute'"):
        world.limiter("20/s burst 20; 200/minute", name="two").try_acquire()
    assert world.limiter("10/s").try_acquire()


def test_a_limiter_with_metrics_is_none_without(world) -> None:
    """The ledgers of one are elsewhere than those of the other: each would begin anew."""
    plain, metrics = "2/minute", {"calls": "2/minute"}
    for name, first, second in (("one", plain, metrics), ("other", metrics, plain)):
        world.limiter(first, name=name).acquire()
        with pytest.raises(LimitMismatch, match="use another name"):
            world.limiter(second, name=name).acquire()
        assert world.limiter(first, name=name).acquire()


def test_the_ledger_lives_at_least_as_long_as_it_did(world) -> None:
    limiter = world.limiter("10/s")
    assert world.drain(limiter) == 10
    for limit in ("10/hour", "10/s"):
        limiter.set_limit(limit)
        flow = reconfigure(limiter._shared.ledgers.registry.ledger((None,)))
        write = flow.send(send(world.client, next(flow)))
        assert send(world.client, write) == 1
        times = [world.client.pttl(key) for key in world.client.scan_iter("headway:*")]
        assert len(times) == 2
        assert min(times) > 3_600_000


def test_of_two_clients_that_change_the_limit_at_once_one_writes(world) -> None:
    first = world.limiter("10/s")
    assert world.drain(first) == 10
    new = [world.limiter("15/s"), world.limiter("15/s")]
    # Both have read what there is; then both write.
    flows = [reconfigure(limiter._shared.ledgers.registry.ledger((None,))) for limiter in new]
    read = [send(world.client, next(flow)) for flow in flows]
    writes = [flow.send(reply) for flow, reply in zip(flows, read, strict=True)]
    assert [send(world.client, write) for write in writes] == [1, 0]
    assert [world.drain(limiter) for limiter in new] == [5, 0]


def test_no_list_is_gone_before_its_ledger(world) -> None:
    limiter = world.limiter("10/s")
    limiter.pause(3600)
    limiter.pause(0)
    assert limiter.try_acquire()
    root, runs = (world.client.pttl(key) for key in ("headway:{api}", "headway:{api}:c1"))
    assert runs >= root - 1000


def test_a_list_that_outlived_its_ledger_mints_nothing(world) -> None:
    limiter = world.limiter("10/s")
    assert world.drain(limiter) == 10
    world.client.delete("headway:{api}")
    again = world.limiter("10/s")
    assert again.try_acquire()
    world.move(1)
    assert world.drain(again) == 10


def test_what_its_root_has_forgotten_is_not_brought_back(world) -> None:
    limits = {"requests": "10/s", "tokens": "100/s"}
    first = world.limiter(limits)
    assert first.try_acquire({"requests": "alice", "tokens": "acme"}, cost={"requests": 1, "tokens": 90})
    world.client.delete("headway:{api}")
    assert world.limiter(limits).try_acquire({"requests": "bob", "tokens": "other"})
    # The ledger of "bob" is of this epoch and has to be adopted, the one of "acme" is not and starts anew.
    newer = world.limiter({"requests": "5/s", "tokens": "50/s"})
    assert newer.try_acquire({"requests": "bob", "tokens": "acme"}, cost={"requests": 4, "tokens": 50})
    assert not newer.try_acquire({"requests": "bob", "tokens": "acme"}, cost={"requests": 1, "tokens": 0})


def test_scripts_are_loaded_again_without_further_rights(server) -> None:
    server.client().execute_command(*acl_line("limits", "secret").split())
    limiter = headway.Limiter("10/s", name="api", engine=server.url.replace("//", "//limits:secret@"))
    assert limiter.try_acquire(cost=10)
    for limit in ("10/minute", "11/minute"):
        server.client().script_flush()
        limiter.set_limit(limit)
        assert limiter.peek().limit == limiter.limit
    assert limiter.peek().remaining == 1
    limiter.close()
    server.client().acl_deluser("limits")


@pytest.mark.realtime
def test_a_waiter_in_the_queue_is_served_under_the_new_rule(server) -> None:
    engine = Engine(read_address(server.url))
    limiter = headway.Limiter("1 concurrent", name="api", engine=engine)
    held = limiter.acquire()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(limiter.acquire, timeout=10) for _ in range(2)]
        eventually(lambda: limiter.peek().waiting == 2, "two waiters in the queue")
        limiter.set_limit("2 concurrent")
        assert limiter.peek().in_flight == 2
        eventually(lambda: sum(one.done() for one in asked) == 1, "one waiter that is served")
        assert limiter.peek().waiting == 1
        held.complete()
        for one in asked:
            one.result(NEVER).complete()
    limiter.close()
    engine.close()
