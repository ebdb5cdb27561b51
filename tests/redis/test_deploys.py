# mypy: disable-error-code="attr-defined, union-attr"
"""A rolling deploy that changes a limit, a lease or a script: old and new processes side by side, and in one queue."""

from __future__ import annotations

import threading
import time
from hashlib import sha1
from struct import pack
from typing import Any

import pytest
from tests.redis.servers import eventually
from tests.redis.workers import Use, most_for_certain

from headway import Limiter, RateLimited, Window
from headway.engines.redis.client import registry
from headway.engines.redis.engine import Engine
from headway.engines.redis.net.address import read_address
from headway.engines.redis.script.scripts import Script, ledger_script
from headway.errors import LimitMismatch

LEASE = 30
"""Seconds: a waiter that is not told of its turn would sleep for longer than any of these tests."""
WITHIN = 10


@pytest.fixture
def sides(server):
    """sides(before, after): a limiter for each side of a deploy, as two processes would have them."""
    made = []

    def make(*limits, leases=()):
        for limit, lease in zip(limits, leases or [LEASE] * len(limits), strict=True):
            engine = Engine(read_address(f"{server.url}?lease={lease}"))
            made.append((Limiter(limit, name="deployed", engine=engine, engine_timeout=2), engine))
        return [limiter for limiter, _ in made[-len(limits) :]]

    yield make
    for limiter, engine in made:
        limiter.close()
        engine.close()


class Waiter:
    """A thread that waits for a permit; when it is made, it stands in the queue."""

    def __init__(self, limiter, limiters):
        before = standing(limiters)
        self.permit: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._wait, args=(limiter,), daemon=True)
        self._thread.start()
        # On a machine that stands still for longer than a short lease, it may have been served by now.
        eventually(lambda: standing(limiters) > before or self._done(), "one more waiter in the queue")

    def _done(self):
        return self.error or self.permit

    def _wait(self, limiter):
        try:
            self.permit = limiter.acquire(timeout=60)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def join(self):
        self._thread.join(WITHIN)
        assert self.error is None
        assert self.permit is not None, "it was never called"
        return self.permit


def standing(limiters):
    """How many stand in the queue, as their processes know it."""
    return sum(
        len(ledger.standing)
        for limiter in limiters
        for ledger in list(limiter._shared.ledgers.registry.ledgers.values())
    )


SHAPES = [
    ("1 concurrent", "1 concurrent; 100/s"),
    ("1 concurrent; 100/s", "1 concurrent; 100/s; 1000/minute burst 1000"),
    ("1 concurrent; 100/day aligned", "1 concurrent"),
    ({"calls": "1 concurrent"}, {"calls": "1 concurrent", "bytes": "100/s"}),
    ({"calls": "1 concurrent", "bytes": "100/s", "files": "9/s burst 9"}, {"calls": "1 concurrent"}),
    ({"calls": "1 concurrent", "bytes": "100/s"}, {"calls": "1 concurrent", "files": "9/s burst 9"}),
]


@pytest.mark.parametrize(("before", "after"), SHAPES, ids=str)
def test_another_number_of_rules_or_other_metrics_need_another_name(sides, before, after):
    """Also while callers wait in the queue: those that were there first are served, and the others are told at once."""
    old, new = sides(before, after)
    permit = old.acquire()
    for _ in range(2):
        with pytest.raises(LimitMismatch, match="use another name"):
            new.acquire(timeout=WITHIN)
    waiter = Waiter(old, [old])
    with pytest.raises(LimitMismatch):
        new.peek()
    permit.complete()
    waiter.join().complete()
    eventually(lambda: old.peek().in_flight == 0, "the last hand-back")


CHANGES = [
    ("1 concurrent; 100/s", "1 concurrent; 200/s"),
    ("1 concurrent; 1000/day aligned", "1 concurrent; 2000/day aligned"),
    ({"calls": "1 concurrent", "bytes": "100/s"}, {"calls": "1 concurrent", "bytes": "50/s"}),
]


@pytest.mark.realtime
@pytest.mark.parametrize(("before", "after"), CHANGES, ids=str)
def test_first_come_first_served_on_both_sides(sides, before, after):
    old, new = both = sides(before, after)
    permit = old.acquire()
    waiters = [Waiter(side, both) for side in (old, new, new, old, new)]
    while waiters:
        assert not any(waiter.permit for waiter in waiters)
        permit.complete()
        permit = waiters.pop(0).join()
    permit.complete()
    for side in both:
        eventually(lambda side=side: side.peek().in_flight == 0, "the last hand-back")
        assert side.peek().waiting == 0


@pytest.mark.realtime
def test_waiters_that_give_up_or_die_block_no_other(sides):
    old, new = both = sides("1 concurrent; 100/s", "1 concurrent; 200/s")
    permit = old.acquire()
    with pytest.raises(RateLimited):
        new.acquire(timeout=0.3)
    first, second = Waiter(new, both), Waiter(old, both)
    first_ask = next(iter(new._shared.ledgers.registry.ledger((None,)).standing.values()))
    first_ask.withdraw()  # as an interrupted waiter does
    permit.complete()
    second.join().complete()
    assert first.permit is None
    first_ask.void = True  # and now it goes on
    first_ask.wake()
    first.join().complete()


@pytest.mark.realtime
@pytest.mark.parametrize("limit", ["1 concurrent", "100/s; 1 concurrent"])
@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_holder_with_a_long_lease_keeps_its_permit(sides, limit, called, turn):
    """A deploy that makes the lease shorter: for the new ones, the old ones are silent for longer than one."""
    seldom, often = sides(limit, limit, leases=(LEASE, 0.4)[::turn])[::turn]
    first = often.acquire()
    if called:
        waiter = Waiter(seldom, [seldom, often])
        first.complete()
        eventually(lambda: waiter.permit, "a waiter that is served")
        held = waiter.permit
    else:
        first.complete()
        held = seldom.acquire()
    time.sleep(1)
    assert not often.try_acquire()
    held.check()
    held.complete()
    often.acquire(timeout=WITHIN).complete()


@pytest.mark.realtime
@pytest.mark.parametrize("turn", [1, -1])
def test_a_waiter_with_a_long_lease_keeps_its_place(sides, turn):
    """As above, for a waiter in the queue."""
    seldom, often = sides("1 concurrent", "1 concurrent", leases=(LEASE, 0.4)[::turn])[::turn]
    first = often.acquire()
    waiter = Waiter(seldom, [seldom, often])
    time.sleep(1)
    second = Waiter(often, [seldom, often])
    first.complete()
    eventually(lambda: waiter.permit, "the first waiter")
    assert second.permit is None
    waiter.permit.complete()
    eventually(lambda: second.permit, "the second waiter")
    second.permit.complete()


@pytest.mark.realtime
@pytest.mark.parametrize("turn", [1, -1])
def test_nothing_is_minted_and_no_waiter_is_stuck(sides, turn):
    """Threads of both sides take, hold and hand back: never more than the parts that are the same on both."""
    limits = ("2 concurrent; 10 per 200ms; 500/s burst 500", "2 concurrent; 10 per 200ms; 600/s burst 600")[
        ::turn
    ]
    both = sides(*limits)
    lock, end = threading.Lock(), time.monotonic() + 2
    inside, most, grants, troubles = 0, 0, [], []

    def work(limiter):
        nonlocal inside, most
        try:
            while time.monotonic() < end:
                with limiter.hold(timeout=WITHIN) as permit:
                    with lock:
                        inside += 1
                        most = max(most, inside)
                        grants.append(Use.of(permit))
                    time.sleep(0.003)
                    with lock:
                        inside -= 1
        except BaseException as error:  # noqa: BLE001 - looked at below
            troubles.append(error)

    threads = [threading.Thread(target=work, args=(limiter,)) for limiter in both * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * WITHIN)
    assert troubles == []
    assert most == 2
    assert most_for_certain(0.2, grants) <= 10
    assert len(grants) > 20
    eventually(lambda: both[0].peek().in_flight == 0, "the last hand-back")
    assert [limiter.peek().waiting for limiter in both] == [0, 0]


@pytest.mark.realtime
@pytest.mark.parametrize("turn", [1, -1])
def test_a_caller_that_could_reserve_does_not_overtake_the_queue(sides, turn):
    """A window that counts at the decision promises times; while others stand in the queue for it, all do. And where
    the other side governs, no caller that could wait is told that it is too late."""
    promising, queueing = sides(*(Window(80, per=1, remote=False), "80/s")[::turn])[::turn]
    stop, troubles = threading.Event(), []

    def press():
        try:
            while not stop.is_set():
                promising.acquire(timeout=60)
        except BaseException as error:  # noqa: BLE001 - looked at below
            troubles.append(error)

    pressing = [threading.Thread(target=press, daemon=True) for _ in range(40)]
    for thread in pressing:
        thread.start()
    eventually(lambda: promising.peek().remaining == 0, "a limit that is used up")
    try:
        for _ in range(3):
            with queueing.hold(timeout=WITHIN):
                pass
    finally:
        stop.set()
        for thread in pressing:
            thread.join(3 * WITHIN)
    assert troubles == []


def test_two_versions_of_the_scripts_keep_one_ledger(server, name, monkeypatch):
    """They are known by their SHA, so that neither takes the other's place."""

    def later(kinds, queue, leases):
        text = ledger_script(kinds, queue, leases).text + b"\n-- a later version"
        return Script(text, sha1(text).hexdigest().encode())

    old, new = (Limiter("4/minute; 4 concurrent", name=name, engine=server.url) for _ in range(2))
    scripts = [old._shared.ledgers.registry.ledger((None,)).script]
    monkeypatch.setattr(registry, "ledger_script", later)
    scripts.append(new._shared.ledgers.registry.ledger((None,)).script)
    permits = [limiter.acquire(timeout=1) for limiter in (old, new, old, new)]
    assert not old.try_acquire()
    assert not new.try_acquire()
    assert server.client().script_exists(*(script.sha for script in scripts)) == [True, True]
    for permit in permits:
        permit.complete()


def test_a_ledger_that_a_later_version_has_written_is_left_alone(server, name):
    limiter = Limiter("4/minute", name=name, engine=server.url)
    limiter.acquire()
    client, root = server.client(), limiter._shared.ledgers.registry.ledger((None,)).keys[0]
    later = pack("<d", 3) + client.hget(root, "m")[8:]
    client.hset(root, "m", later)
    with pytest.raises(LimitMismatch, match="format 3"):
        limiter.acquire()
    assert client.hget(root, "m") == later


def test_a_part_of_another_kind_at_the_same_place_is_refused(sides):
    old, new = sides("10/minute; 5 concurrent", "10/minute; 5/day")
    old.acquire().complete()
    with pytest.raises(LimitMismatch):
        new.try_acquire()
