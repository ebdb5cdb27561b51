# mypy: disable-error-code="attr-defined, union-attr"
"""Core against Lua: the same random calls of clients that hold tokens, every answer, share and state compared.

The Lua that is played is the one that limiters' scripts are made of (`lease_driver.lua` is only the frame). A trace is
cut into batches of random length, and the ledger and its leases are stored and opened again between them. The calls are
drawn while the core plays: new ones, renewals, repetitions, old ones, calls about leases that are over, calls that hand
back too much, last calls, single permits in between, and clients that are not heard of any more.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from struct import pack, unpack, unpack_from
from typing import Any

import pytest

from core.script_traces import START, rule_of
from headway.clock import SYSTEM
from headway.core.lease import LeaseLedger, Sync
from headway.core.ledger import EXACT, FOREVER, LONG_AGO, Rule
from headway.core.lendable import CountTokens, SlotTokens
from headway.core.limits import Bucket, Concurrency, FixedWindow, Window
from headway.core.remote import Remote
from headway.core.tokens import BucketTokens, Tokens, WindowTokens, incoming
from headway.engines import base
from headway.engines.base import LimiterTerms
from headway.engines.redis.engine import Engine
from headway.engines.redis.net.address import read_address
from headway.engines.redis.script.codec import Stored, decode, encode, rule_here
from headway.engines.redis.script.protocol import TICK, record_of
from headway.engines.redis.script.scripts import part

KEY = b"leases"
LEASE_NS = 10**10
SEEDS = range(12)
SIZE = 220
LIMITS = {
    "plain": Window(20, per="1s", remote=False),
    "bare or bracketed": Window(40, per="2s"),
    "held": Window(12, per="1s", remote=Remote(max_transit=1)),
    "coarse": Window(5_000, per="60s", remote=False),
    "bucket": Bucket("20/s", burst=20),
    "uneven bucket": Bucket("7/s", burst=30),
    "bucket without room for fractions": Bucket((1_000_003, "day"), burst=1_000_003),
    "fast bucket": Bucket("1000000/s", burst=1_000_000),
    "fixed window": FixedWindow(60, per="hour"),
    "concurrency": Concurrency(15),
}


@cache
def script(kind):
    own = Path(__file__).with_name("lease_driver.lua").read_text()
    names = ("prelude", "runs", kind, "lend", f"lend_{kind}", "shares", "lease")
    return "\n".join([*map(part, names), own])


def doubles(*numbers):
    near = {FOREVER: EXACT, LONG_AGO: -EXACT}
    return pack(f"<{len(numbers)}d", *[near.get(number, number) for number in numbers])


def tokens_of(limit, rule, ttl) -> Tokens:
    match limit:
        case Window():
            return WindowTokens(rule)
        case Bucket():
            return BucketTokens(limit, tick_ns=TICK)
        case FixedWindow():
            return CountTokens(rule, 2 * ttl)
        case Concurrency():
            return SlotTokens(limit, rule.lease)
    raise AssertionError(limit)


class Client:
    """What a client knows: as much as is needed to draw its next call."""

    def __init__(self, name):
        self.name = name
        self.seq = 0
        self.lease = self.held = self.recall = self.want = 0
        self.last: Sync | None = None


class Trace:
    """Draws commands and plays them on the core; each with what the core had to say and how it stood afterwards."""

    waiters: tuple[int, ...] = (0, 0, 0, 1, 3)

    def __init__(self, limit, seed, others=()):
        self.dice = dice = Random(f"{limit} {seed}")
        self.ttl = dice.choice((300_000, 3_000_000, 40_000_000))
        self.predict = dice.choice((4_000_000, 500_000))
        self.rule = rule_of(limit, LEASE_NS)
        self.tokens = tokens_of(limit, self.rule, self.ttl)
        self.ledger = LeaseLedger(self.tokens, self.ttl, 0, self.predict)
        self.size = limit.capacity
        self.clients = [Client(f"c{i}") for i in range(dice.choice((1, 3, 8, 40)))]
        self.now = START + dice.randrange(10**6) - (3_000_000 if limit.kind == "fixed_window" else 0)
        self.permits: list[tuple[int, int]] = []
        self.steps: list[tuple[bytes, Any]] = []
        self.others = others
        self.adopted: dict[int, tuple[Rule, int]] = {}  # by the number of the step before which it is

    def play(self, n):
        while len(self.steps) < n:
            dice = self.dice
            # Mostly soon, sometimes at once, seldom after the end of leases.
            self.now += dice.choice((0, 1, 1000, self.ttl // 50, self.ttl // 12, self.ttl // 3))
            if dice.random() < 0.02:
                self.now += self.ttl * dice.randint(1, 3)
            self.ledger.waiting = dice.choice(self.waiters)
            if self.steps and self.others and dice.random() < 0.01:
                self.adopt(dice.choice(self.others))
            if dice.random() < 0.25:
                self.single()
            elif self.permits and dice.random() < 0.2:
                self.end()
            else:
                self.call(dice.choice(self.clients))
        return self.steps

    def add(self, what, own, answer):
        ends = (0, 0)
        if self.rule.uses_wall_clock:
            _, end = self.rule.window_of(self.now)
            ends = (end, self.rule.window_of(end)[1])
        front = doubles(what, self.now, self.ttl, self.predict, *ends, self.ledger.waiting)
        self.steps.append((front + own, self.stands(answer)))

    def call(self, client):
        dice = self.dice
        draw = dice.random()
        if client.last is not None and draw < 0.08:
            ask = client.last._replace(attempt=client.last.attempt + 1)  # its answer was lost
        elif client.last is not None and draw < 0.12:
            ask = client.last._replace(seq=max(0, client.seq - 1))
        else:
            ask = self.new_call(client, draw)
        answer = self.ledger.sync(self.now, ask)
        self.last = ask, answer
        if answer is not None and answer.seq == client.seq:
            if answer.void or answer.lease == 0:
                client.lease = client.held = client.recall = 0
            elif client.lease != answer.lease or ask is client.last or ask.attempt == 0:
                client.lease = answer.lease
                client.held = ask.holding + sum(count for count, _ in answer.tokens)
                client.recall = answer.recall
        back = [number for pair in incoming(ask.back, 0, 1) for number in pair]
        said = doubles(ask.seq, ask.attempt, ask.lease, ask.want, ask.holding, ask.closing)
        told: list[float] = []
        if answer is not None:
            told = [*answer[:3], answer.recall, answer.ttl, answer.again, answer.void, len(answer.tokens)]
            told += [number for pair in answer.tokens for number in pair]
        self.add(1, said + ask.client.encode().ljust(8, b"\0") + doubles(*back), told)

    def new_call(self, client, draw):
        dice = self.dice
        most = client.held if draw > 0.14 else client.held + 3
        back = min(most, client.recall if dice.random() < 0.8 else dice.randint(0, most))
        spans = sorted(dice.choice((0, 1, dice.randrange(2_000_000))) for _ in range(min(3, back)))
        batch = [(1, span) for span in spans]
        if back > 3:
            batch[0] = (back - 2, spans[0])
        holding = max(0, client.held - back)
        if dice.random() < 0.1:
            holding = dice.randint(0, holding)
        if dice.random() < 0.5:
            client.want = dice.randrange(2 * self.size * 1000 // dice.choice((1, len(self.clients))) + 1)
        lease = client.lease if dice.random() > 0.04 else dice.choice((0, client.lease + 1))
        client.seq += 1
        client.last = Sync(
            client.name, client.seq, 0, lease, client.want, holding, tuple(batch), dice.random() < 0.03
        )
        return client.last

    def single(self):
        cost = self.dice.choice((1, 1, 1, 2, min(5, self.size)))
        self.ledger.direct(self.now, cost)
        ledger = self.tokens.ledger
        wait = ledger.wait(self.now, cost)
        told = [wait]
        if wait == 0:
            mark = ledger.take_held(self.now, cost)
            told.append(mark)
            self.permits.append((cost, mark))
        self.add(2, doubles(cost), told)

    def end(self):
        cost, mark = self.permits.pop(self.dice.randrange(len(self.permits)))
        self.tokens.ledger.complete(self.now, cost, mark)
        self.add(3, doubles(cost, mark), [])

    def adopt(self, limit):
        self.rule = rule_of(limit, LEASE_NS)
        self.size = max(1, limit.capacity)
        self.adopted[len(self.steps)] = self.rule, self.now
        self.tokens.reconfigure(self.rule, self.now)
        self.ledger.resized(self.now)
        self.add(4, b"", [])

    def stands(self, answer):
        """The same numbers as the driver tells."""
        ledger, now = self.ledger, self.now
        kept = [
            ledger.named, len(ledger.leases), ledger.held, ledger.short, ledger.recalled, ledger.changes,
            ledger.direct_share, ledger.window_end, self.tokens.balance(now), ledger.held,
        ]  # fmt: skip
        for lease in ledger.leases.values():
            kept += (lease.number, lease.seq, lease.held, lease.want, lease.share, lease.recall, lease.end)
        return [len(answer), *answer, *kept], self.state()

    def state(self):
        inner = self.tokens.ledger
        match self.tokens:
            case WindowTokens():
                out = () if inner.out is None else inner.out.pairs()
                return (inner.free, inner.enterable, inner.lost, inner.lent), (inner.cooling.pairs(), out)
            case BucketTokens():
                lent = self.tokens.capacity - self.tokens.units
                return (inner.tat, inner.part, inner.latest, inner.tally, lent), ()
            case CountTokens():
                return (inner.ends, inner.used, inner.tally), ()
            case SlotTokens():
                return (self.tokens.capacity - self.tokens.slots,), (inner.leases.pairs(),)
        raise AssertionError(self.tokens)


def told(numbers, front, kind):
    """A driver's answer as `Trace.stands` has it."""
    head, rest = list(numbers[:front]), numbers[front:]
    match kind:
        case "window":
            state = (rest[0], rest[12], rest[13], rest[14])
            cooling = 2 * int(rest[2])
            return head, (state, (rest[16 : 16 + cooling], rest[16 + cooling :]))
        case "concurrency":
            return head, ((rest[6],), (rest[7:],))
    return head, (rest, ())


def near(values):
    return tuple(unpack(f"<{len(values)}d", doubles(*values)))


def reconfigure(client, rule, now):
    """What `reconfigure.py` does."""
    lists = [b"".join(client.lrange(KEY + end, 0, -1)) for end in (b":c1", b":o1")]
    stored = Stored(client.hget(KEY, "s1"), *lists)
    ledger = decode(stored)
    ledger.reconfigure(rule_here(rule, stored.lent), now)
    new = encode(ledger, 1, now, b"", rule, stored.lent)
    client.hset(KEY, "s1", new.value)
    for end, runs in ((b":c1", new.cooling), (b":o1", new.out)):
        client.delete(KEY + end)
        if runs:
            client.rpush(KEY + end, *[runs[at : at + 16] for at in range(0, len(runs), 16)])


def compare(server, limit, seed, others=()):
    trace = Trace(limit, seed, others)
    first, began = trace.rule, trace.now
    steps = trace.play(SIZE)
    client = server.client()
    client.delete(KEY, *(KEY + end for end in (b":c1", b":o1", b":l1", b":e1")))
    run = client.register_script(script(limit.kind))
    record, dice, at = record_of(first, 1, began), Random(seed), 0
    while at < len(steps):
        size = dice.choice((1, 1, 2, 5, 20))
        if at in trace.adopted:
            reconfigure(client, *trace.adopted[at])
        size = min([size, *(ahead - at for ahead in trace.adopted if ahead > at)])
        batch = steps[at : at + size]
        for number, (step, reply) in enumerate(
            zip(batch, run(keys=[KEY], args=[record, *(said for said, _ in batch)]), strict=True)
        ):
            (head, (state, lists)) = step[1]
            found = unpack(f"<{len(reply) // 8}d", reply)
            front, kept = told(found, len(head), limit.kind)
            wanted = list(near(head)), (near(state), tuple(map(near, lists)))
            assert (front, kept) == wanted, (limit, seed, at + number)
        at += size
    return len(steps), trace


@pytest.mark.parametrize("name", LIMITS)
def test_scripts_lend_as_the_core_does(name, server) -> None:
    lent = 0
    for seed in SEEDS:
        _, trace = compare(server, LIMITS[name], seed)
        lent += trace.ledger.named
    assert lent >= 20


OTHERS = {
    "plain": (Window(7, per="1s", remote=False), Window(30, per="2s", remote=False)),
    "bare or bracketed": (Window(10, per="1s"), Window(40, per="2s")),
    "held": (
        Window(3, per="1s", remote=Remote(max_transit=1)),
        Window(20, per="1s", remote=Remote(max_transit=1)),
    ),
    "bucket": (Bucket("20/s", burst=5), Bucket("50/s", burst=31), Bucket("20/s", burst=20)),
    "fixed window": (FixedWindow(10, per="hour"), FixedWindow(80, per="hour")),
    "concurrency": (Concurrency(4), Concurrency(22)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_limit_that_is_changed_while_it_is_lent(name, server) -> None:
    adopted = 0
    for seed in SEEDS:
        _, trace = compare(server, LIMITS[name], seed, OTHERS[name])
        adopted += len(trace.adopted)
    assert adopted >= 10


# -- whole scripts --------------------------------------------------------------------------------------------------


class Whole(Trace):
    """A trace that is played through an engine: scripts with and without leases, and formats that come and go."""

    waiters = (0,)

    def __init__(self, limit, seed, url, name):
        Trace.__init__(self, limit, seed)
        self.limit = limit
        self.engine = Engine(read_address(f"{url}?drift_ppm=0"))
        (self.rule,) = self.engine.rules_of(limit)
        self.tokens = tokens_of(limit, self.rule, self.ttl)
        self.ledger = LeaseLedger(self.tokens, self.ttl, 0, self.predict)
        # Its clock is ours here and jumps ahead, which is nobody's loss.
        terms = LimiterTerms(
            name,
            SYSTEM,
            str(limit),
            (None,),
            self.engine.rules_of(limit),
            None,
            2 * 10**9,
            "trust",
            None,
            ignore,
        )
        # Two processes, as it were: the second one never makes a call, and learns of leases by being refused.
        self.lender, self.taker = self.engine.open(terms), self.engine.open(terms)
        self.first = 0

    def add(self, what, own, answer):
        """How the book stands is compared at the end: what a script says is an answer."""
        self.steps.append((b"", None))

    def call(self, client):
        self.engine.fixed_time = float(self.now)
        known = {name: lease.number for name, lease in self.ledger.leases.items()}
        Trace.call(self, client)
        ask, answer = self.last
        lease = ask.lease + self.first if ask.lease and self.first else ask.lease
        back = tuple((count, after * TICK) for count, after in ask.back)
        synced = self.lender.send(
            base.Sync((None,), (ask._replace(lease=lease, back=back),), self.ttl * TICK, self.predict * TICK)
        )
        (told,) = synced.answers
        if told is not None and told.lease and not self.first:
            self.first = told.lease - answer.lease
        ours = None
        if answer is not None:
            ours = answer._replace(
                lease=answer.lease and answer.lease + self.first,
                ttl=answer.ttl * TICK,
                again=answer.again * TICK,
                tokens=tuple((count, after * TICK) for count, after in answer.tokens),
            )
        assert told == ours, (self.limit, len(self.steps), known)

    def single(self):
        self.engine.fixed_time = float(self.now)
        cost = self.dice.choice((1, 1, 2))
        # While there are no leases, demand is not counted: the ledger has no book open.
        if self.ledger.leases:
            self.ledger.direct(self.now, cost)
        ledger = self.tokens.ledger
        free = ledger.wait(self.now, cost) == 0
        decision = self.dice.choice((self.lender, self.taker)).send(
            base.Acquire((None,), (cost,), base.Patience.NOW, brackets=True)
        )
        assert (decision.verdict == base.Verdict.GRANTED) == free, (self.limit, len(self.steps))
        decision.owned = True
        if free:
            ledger.take_held(self.now, cost)
        self.steps.append((b"", None))

    def book(self):
        ledger = self.ledger
        return [ledger.held, ledger.short, ledger.recalled, ledger.changes, ledger.direct_share]


def ignore(*_told):
    """Of quarantines that a clock that jumps makes."""


@pytest.mark.parametrize("name", LIMITS)
def test_whole_scripts_lend_as_the_core_does(name, valkey) -> None:
    formats = set()
    for seed in SEEDS:
        limit = f"whole{seed}"
        trace = Whole(LIMITS[name], seed, valkey.url, limit)
        for size in range(10, 150, 10):
            trace.play(size)
            client = valkey.client()
            formats.add(unpack("<d", client.hget(f"headway:{{{limit}}}", "m")[:8])[0])
            kept = client.hget(f"headway:{{{limit}}}:l1", "b")
            if kept is not None and trace.ledger.leases:
                assert list(unpack_from("<13d", kept, 24)[5:10]) == trace.book(), (name, seed, size)
        trace.engine.close()
    assert formats == {1.0, 2.0}
