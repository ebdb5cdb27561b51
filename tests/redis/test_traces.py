"""Core against Lua: the same random commands, every answer and every state compared number by number.

The Lua that is played is the one that limiters' scripts are made of; only the frame around it is a test's own
(`driver.lua`). A trace is cut into batches of random length, and the ledger is stored and opened again between them.
Where a trace goes on under another rule, the stored ledger is brought under it as `reconfigure` does: read into the
core's
ledger, adopted there, written back.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path
from random import Random
from struct import pack, unpack

import pytest

import headway
from core.script_traces import KINDS, START, Command, play, random_trace, rule_of
from headway.core.ledger import EXACT, FOREVER, LONG_AGO
from headway.core.limits import Bucket, Concurrency, Window
from headway.core.remote import Remote
from headway.engines.redis.engine import Engine
from headway.engines.redis.net.address import read_address
from headway.engines.redis.script.codec import Stored, decode, encode
from headway.engines.redis.script.protocol import record_of
from headway.engines.redis.script.scripts import part

VERBS = (
    "wait",
    "take",
    "reserve",
    "complete",
    "abandon",
    "cancel",
    "settle",
    "renew",
    "look",
    "march",
    "hold",
    "enter",
)
SEEDS = range(100)
SIZE = 160
KEY = b"trace"


@cache
def driver(kind):
    own = Path(__file__).with_name("driver.lua").read_text()
    return "\n".join([part("prelude"), part("runs"), part(kind), own])


def doubles(*numbers):
    """As a script counts: never and for ever are nearer there."""
    near = {FOREVER: EXACT, LONG_AGO: -EXACT}
    return pack(f"<{len(numbers)}d", *[near.get(number, number) for number in numbers])


class Player:
    """A ledger on a server that plays commands of a trace."""

    def __init__(self, server, kind, rule, now=START):
        self.client = server.client()
        self.kind = kind
        self.script = self.client.register_script(driver(kind))
        self.record = record_of(rule, 1, now)

    def play(self, commands):
        """[(answer, what is stored, tally)] of commands that change no rule."""
        said = [doubles(VERBS.index(verb) + 1, *numbers) for verb, *numbers in commands]
        return [self._read(answer) for answer in self.script(keys=[KEY], args=[self.record, *said])]

    def _read(self, reply):
        numbers = unpack(f"<{len(reply) // 8}d", reply)
        answered = int(numbers[0])
        told = int(numbers[answered + 1])
        state = numbers[answered + 2 : answered + 2 + told]
        return numbers[1 : answered + 1], state, numbers[-1]

    def stored(self):
        lists = [b"".join(self.client.lrange(KEY + end, 0, -1)) for end in (b":c1", b":o1")]
        return Stored(self.client.hget(KEY, "s1"), *lists)

    def reconfigure(self, rule, now):
        """What `reconfigure.py` does."""
        ledger = decode(self.stored())
        ledger.reconfigure(rule, now)
        new = encode(ledger, 1, now)
        self.client.hset(KEY, "s1", new.value)
        for end, runs in ((b":c1", new.cooling), (b":o1", new.out)):
            self.client.delete(KEY + end)
            if runs:
                self.client.rpush(KEY + end, *[runs[at : at + 16] for at in range(0, len(runs), 16)])


def near(numbers):
    return unpack(f"<{len(numbers)}d", doubles(*numbers))


def split_runs(numbers, ends, more=0):
    """The lists behind the numbers of a state; what the state says of their ends must be so."""
    at, lists = ends[-1] + 5 + more, []
    for first in ends:
        size, total, low, high, count = numbers[first : first + 5]
        length = int(numbers[at])
        runs = numbers[at + 1 : at + 1 + length]
        at += 1 + length
        assert (2 * size, total) == (len(runs), sum(runs[1::2]))
        if runs:
            assert low in (-1, runs[0])
            assert (high, count) == runs[-2:] or high == -1
        lists.append(runs)
    return lists


def as_core(kind, numbers):
    """A script's state in the order of the core's."""
    match kind:
        case "window":
            cooling, out = split_runs(numbers, (2, 7), 2)
            return (numbers[0], numbers[12], numbers[13], *cooling, -1, *out)
        case "bucket":
            return numbers
        case "spacing":
            last, slack, before, older, _ = numbers
            return (last, slack, -EXACT, before, older)  # uses are not reported
        case "fixed_window":
            return numbers[:2]
    (out,) = split_runs(numbers, (1,))
    return (numbers[2], numbers[0], *out)


def batches(trace, dice):
    """A trace cut at random, and around every change of rule."""
    batch: list[Command] = []
    for command in trace:
        if command[0] in ("open", "adopt"):
            yield from ([batch] if batch else [])
            yield [command]
            batch = []
            continue
        batch.append(command)
        if dice.random() < 0.15:
            yield batch
            batch = []
    yield from ([batch] if batch else [])


@cache
def played(kind, seed):
    """A trace, and what the core makes of it."""
    trace = random_trace(seed, kind, SIZE)
    return trace, play(trace)


def compare(server, kind, seed, trace, results):
    """How many commands were compared; fails at the first on which script and core differ."""
    wanted = iter(results)
    server.client().delete(KEY, KEY + b":c1", KEY + b":o1")
    player = Player(server, kind, rule_of(*trace[0][2:4]), trace[0][1])
    compared = 0
    for batch in batches(trace, Random(seed)):
        verb, now, *rest = batch[0]
        if verb in ("open", "adopt"):
            _, state, tally = next(wanted)
            if verb == "open":
                player.play([])
            else:
                player.reconfigure(rule_of(*rest[:2]), now)
            kept = decode(player.stored())
            assert (kept.state(), kept.tally) == (state, tally), (kind, seed, batch[0])
            compared += 1
            continue
        for command, (answer, state, tally) in zip(batch, player.play(batch), strict=True):
            told, kept, noted = next(wanted)
            ours = (near(told), near(kept), *near((noted,)))
            assert (answer, as_core(kind, state), tally) == ours, (kind, seed, command)
            compared += 1
    return compared


@pytest.mark.parametrize("kind", KINDS)
def test_scripts_decide_as_the_core_does(kind, server) -> None:
    compared = sum(compare(server, kind, seed, *played(kind, seed)) for seed in SEEDS)
    assert compared >= 10_000


def long_trace(dice, limit):
    """Many permits out at once, each with a run of its own, that end in any order."""
    ledger, now = rule_of(limit, 10**10).open(), START
    trace: list[Command] = [("open", now, limit, 10**10)]
    permits = []
    for _ in range(150):
        now += dice.randint(1, 30)
        verb = dice.choice(("take", "hold"))
        trace.append((verb, now, 2))
        permits.append((ledger.take if verb == "take" else ledger.take_held)(now, 2))
    dice.shuffle(permits)
    for mark in permits:
        now += dice.randint(0, 30)
        ends = [("complete", now, 1, mark), ("cancel", now, 2, mark, 0), ("settle", now, 2, mark, 0, 1)]
        more = [("renew", now, 2, mark), ("take", now, 1), ("enter", now, 2, mark, 0, now - 20)]
        trace.append(dice.choice([*ends, *more]))
        trace.append(("look", now, dice.randint(1, limit.capacity)))
    return trace


@pytest.mark.parametrize("remote", [None, False, Remote(max_transit=1), "concurrency"])
def test_lists_that_are_longer_than_what_is_read_at_once(remote, server) -> None:
    concurrent = remote == "concurrency"
    limit = Concurrency(400) if concurrent else Window(400, per="10ms", remote=remote)
    kind = "concurrency" if concurrent else "window"
    for seed in range(10):
        trace = long_trace(Random(seed), limit)
        compare(server, kind, seed, trace, play(trace))


def test_a_million_grants_do_not_drift(server, record_testsuite_property) -> None:
    player = Player(server, "bucket", rule_of(Bucket("3/s", burst=1), 0))
    now, grants, chunk = START, 1_000_000, 20_000
    for _ in range(grants // chunk):
        ((answer, _, _),) = player.play([("march", now, 1, chunk)])
        now = int(answer[0])
    drift = now - START - Fraction((grants - 1) * 1_000_000, 3)
    record_testsuite_property("drift of a million grants at 3/s, in microseconds", float(drift))
    assert 0 <= drift < 1


def fill(limit, url, complete):
    """A day of a full ledger, used at an even pace by the real thing."""
    engine = Engine(read_address(url))
    # Its clock is ours here and jumps ahead with each call, which is nobody's loss.
    limiter = headway.Limiter(limit, name="day", engine=engine, on_ledger_loss="trust")
    steps, day = 2_000, 86_400_000_000
    for step in range(steps):
        engine.fixed_time = float(START + step * day // steps)
        permit = limiter.try_acquire(cost=1_000_000 // steps)
        assert permit
        if complete:
            permit.complete()
    assert limiter.peek().remaining <= 1_000_000 // steps
    limiter.close()
    engine.close()


@pytest.mark.parametrize("remote", [None, Remote()])
def test_a_million_a_day_fit_32_kib(remote, server, record_testsuite_property) -> None:
    fill(Window(1_000_000, per="day", remote=remote), server.url, remote is not None)
    client = server.client()
    used = {key: client.memory_usage(key, samples=0) for key in client.scan_iter()}
    record_testsuite_property("bytes of a full ledger of 1,000,000/day", sum(used.values()))
    assert sum(used.values()) <= 32 * 1024, used
