"""Events that may happen once: what a submit costs, how late events are published, what a million of them weigh.

A submit is timed as a decision on Redis is, beside a raw `INCR` on the same private Valkey. All events differ, and all
are accepted: a rejected one has less to write. The default gate forgets nothing while it is measured; beside it stands
one that remembers for a moment only, which forgets as many events as it accepts.

An event is late by the time from when it is due until a subscriber of its gate, in the process that submits or in
another, has it in hand: the engine noticed, wrote, pushed, and a thread woke up.

A million events are pending at a time that stands still (`ManualClock`, or the engine's fixed time on Redis). Then that
time moves on, the events are published and all of them forgotten, and what is left is weighed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio

import headway
from bench.alone import in_own_process
from bench.crew import answer, answers, crew, start, wait_for_start
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading, Section
from bench.keys import resident_bytes
from bench.redis import SLICE_MS, STEADY, TASKS, per_second, raw
from bench.server import private_server
from bench.timing import Side, take_turns
from headway.core.once import PUBLISHED
from headway.testing import ManualClock

OVER = "submits/s over raw `INCR`"
MANY = 10**9
MILLION = 1_000_000
RATE = 1000
DAY = 86400
TOGETHER = 1000


def gate_on(url: str, name: str, mode: Any = "only", duration: Any = "5min", **options: Any) -> headway.Once:
    """A gate. On a busy machine an answer may take long; that is not what is measured."""
    return headway.Once(
        duration, mode, name=name, engine=url, max_pending=MANY, **{"engine_timeout": 5, **options}
    )


# -- one after another, and many tasks ------------------------------------------------------------------------


def submitting(gate: headway.Once) -> Side:
    """Events that all differ; the gate's clock says whether every one of them was accepted."""
    numbers = itertools.count(1)

    def granted() -> bool:
        number = next(numbers)
        lines = 1 if gate.mode == "strict" else 2
        return gate.submit(str(number)).clock == lines * (number - 1) + 1

    return Side("f(str(g()))", {"f": gate.submit, "g": numbers.__next__}, granted=granted)


@in_own_process()
def serial(effort: Effort) -> Findings:
    with private_server() as url:
        gates = {
            "once-serial": gate_on(url, "only"),
            "once-strict": gate_on(url, "strict", "strict"),
            "once-forgetting": gate_on(url, "forgetting", duration=0.05, retention=0.05),
        }
        rounds = take_turns([*map(submitting, gates.values()), raw(url)], effort, slice_ms=SLICE_MS)
    return Findings({name: per_second(rounds, number, len(gates)) for number, name in enumerate(gates)})


@in_own_process()
def together(effort: Effort) -> Findings:
    """Many tasks that submit at once, 25 times each, as the limiter is measured."""
    with private_server() as url:
        gate, numbers = gate_on(url, "tasks"), itertools.count(1)
        pool = redis.asyncio.ConnectionPool.from_url(url, max_connections=TASKS)
        client = redis.asyncio.Redis(connection_pool=pool)

        async def submit() -> None:
            for _ in range(STEADY):
                await gate.submit_async(str(next(numbers)))

        async def count() -> None:
            for _ in range(STEADY):
                await client.incr("counter")

        def crowd(task: Callable[[], Any]) -> Side:
            async def all_at_once() -> None:
                await asyncio.gather(*(task() for _ in range(TASKS)))

            return Side("await f()", {"f": all_at_once}, awaits=True)

        sides = [crowd(submit), crowd(count), raw(url)]
        rounds = take_turns(sides, effort, slice_ms=4 * SLICE_MS)
        if gate.submit("last").clock != 2 * next(numbers) - 1:
            raise NotMeasured("not every event was accepted")
    each = [(own / TASKS / STEADY, crowded / TASKS / STEADY, alone) for own, crowded, alone in rounds]
    return Findings({"once-tasks": per_second(each, 0, 1), "once-tasks-alone": per_second(each, 0, 2)})


# -- late -----------------------------------------------------------------------------------------------------


def watch(gate: headway.Once, events: int, ready: Callable[[], object]) -> list[float]:
    """Milliseconds from when an event was due until its publication was in hand, for so many events."""
    due: dict[str, float] = {}
    late = []
    for change in gate.subscribe():
        if isinstance(change, headway.once.Snapshot):
            ready()
        elif change.status is PUBLISHED:
            late.append(1000 * (time.time() - due.pop(change.id)))
            if len(late) == events:
                break
        else:
            due[change.id] = change.time + gate.duration
    return late


def submit_on_schedule(gate: headway.Once, events: int) -> None:
    due = time.monotonic()
    for number in range(events):
        gate.submit(str(number))
        due += 1 / RATE
        time.sleep(max(0.0, due - time.monotonic()))


def lateness(late: list[float], note: str) -> Reading:
    cuts = statistics.quantiles(late, n=100, method="inclusive")
    return Reading(
        cuts[98], note=f"{len(late)} events, median {cuts[49]:.2f} ms, most {max(late):.1f} ms; {note}"
    )


def late_here(gate: headway.Once, events: int) -> list[float]:
    """Submitted by one thread, seen by another."""
    found: list[float] = []
    ready = threading.Event()
    watcher = threading.Thread(target=lambda: found.extend(watch(gate, events, ready.set)), daemon=True)
    watcher.start()
    ready.wait()
    submit_on_schedule(gate, events)
    watcher.join(timeout=60)
    if len(found) != events:
        raise NotMeasured(f"{events} events were accepted, {len(found)} seen")
    return found


def watch_from_afar(order: dict[str, Any]) -> None:
    """A worker that follows a gate, and submits nothing."""
    gate = gate_on(order["url"], "late", "strict", 0.5)
    answer(watch(gate, order["events"], wait_for_start))


@in_own_process()
def late(effort: Effort) -> Findings:
    events = RATE * (2 if effort.quick else 10)
    here = late_here(headway.Once(0.5, "strict"), events)
    with private_server() as url:
        order = {"what": "watch", "url": url, "events": events}
        gate = gate_on(url, "late", "strict", 0.5)
        with crew(__name__, order, 1) as workers:
            start(workers)
            submit_on_schedule(gate, events)
            [afar] = answers(workers)
    return Findings(
        {
            "once-late-memory": lateness(here, "a thread submits, another follows the gate"),
            "once-late-redis": lateness(afar, "a process submits, another follows the gate"),
        }
    )


# -- a million ------------------------------------------------------------------------------------------------


@in_own_process()
def million(effort: Effort) -> Findings:
    events = MILLION // 10 if effort.quick else MILLION
    clock = ManualClock()
    gate = headway.Once("1h", "strict", max_pending=events, clock=clock)
    gate.submit("warm-up")
    clock.advance(DAY)
    gate.status("none")
    before = resident_bytes()
    for number in range(events):
        gate.submit(f"event {number}")
    weight = (resident_bytes() - before) / events
    clock.advance(DAY)
    gate.status("none")
    core = gate._gate._shared.core  # type: ignore[attr-defined]
    clock.advance(DAY)
    gate.status("none")
    kept = len(core.pending) + len(core.seen) + len(core.log) + len(core.answers)
    left = resident_bytes() - before
    return Findings(
        {
            "once-bytes": Reading(
                weight,
                note=f"growth of resident memory with {events:,} pending events `event N`, over their number",
            ),
            "once-kept": Reading(kept, note=f"{left / 1e6:.0f} MB of memory not given back"),
        }
    )


class Slowest:
    """The longest command at the server, as it says itself (`SLOWLOG`), since the last look."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        client.config_set("slowlog-log-slower-than", 0)
        client.config_set("slowlog-max-len", 128)
        self.ms = 0.0

    def look(self) -> float:
        found = self.client.slowlog_get(128)
        self.client.slowlog_reset()
        scripts = [one["duration"] / 1000 for one in found if one["command"].startswith(b"EVALSHA")]
        self.ms = max([self.ms, *scripts])
        return self.ms


@in_own_process()
def million_on_redis(effort: Effort) -> Findings:
    events = MILLION // 10 if effort.quick else MILLION
    with private_server() as url, contextlib.closing(redis.Redis.from_url(url)) as client:
        gate = headway.Once(
            "1h", "strict", name="million", engine=url, max_pending=events, retention=0, engine_timeout=60
        )
        engine = gate._gate.engine  # type: ignore[attr-defined]
        engine.fixed_time = 1.7e15
        gate.status("none")
        before = client.info("memory")["used_memory"]

        async def fill() -> None:
            for first in range(0, events, TOGETHER):
                await asyncio.gather(
                    *(gate.submit_async(f"event {number}") for number in range(first, first + TOGETHER))
                )

        asyncio.run(fill())
        weight = (client.info("memory")["used_memory"] - before) / events
        slowest = Slowest(client)
        for number in range(100):
            gate.status(f"none {number}")
        while_full = slowest.look()
        began = time.monotonic()
        pending = len(gate.snapshot().pending)
        took = time.monotonic() - began
        slowest.ms, snapshot = 0.0, slowest.look()
        if pending != events:
            raise NotMeasured(f"{events:,} events were accepted, {pending:,} are pending")
        began, looks = time.monotonic(), 0
        for seconds in (3600, DAY):  # when they are due, and when nothing of them is kept any more
            engine.fixed_time += seconds * 1e6
            held = -1
            while held != (held := client.info("memory")["used_memory"]):
                for _ in range(20):
                    gate.status("none")
                slowest.look()
                looks += 20
        took_to_end = time.monotonic() - began
        left = client.info("memory")["used_memory"] - before
        ends = [client.pttl(key) for key in client.scan_iter()]
    return Findings(
        {
            "once-redis-bytes": Reading(
                weight, note=f"growth of `used_memory` with {events:,} pending events"
            ),
            "once-redis-slowest": Reading(
                slowest.ms,
                note=f"while they were published and forgotten by {looks:,} commands in {took_to_end:.0f} s; "
                f"{while_full:.2f} ms with all pending; a snapshot of all took {took:.1f} s, "
                f"its longest script {snapshot:.0f} ms",
            ),
            "once-redis-left": Reading(
                max(0, left), note=f"{len(ends)} keys, which expire in {max(ends) / 1000:.0f} s"
            ),
            "once-redis-endless": Reading(sum(end < 0 for end in ends)),
        }
    )


SECTION = Section(
    "once",
    "Events that may happen once",
    (
        Figure("once-serial", f"Once, Redis, one after another: {OVER}", serial, ">=", 0.6, "x"),
        Figure("once-strict", "the same, a strict gate", serial, unit="x"),
        Figure("once-forgetting", "the same, a gate that forgets as many as it accepts", serial, unit="x"),
        Figure(
            "once-tasks",
            f"Once, Redis, {TASKS} tasks that submit at once, {STEADY} times each: {OVER} by as many tasks",
            together,
            ">=",
            6,
            "x",
        ),
        Figure(
            "once-tasks-alone", "the same, over raw `INCR` one after another, no tasks", together, unit="x"
        ),
        Figure(
            "once-late-memory",
            f"Once in memory, {RATE:,} events/s: published late, p99",
            late,
            "<=",
            10,
            "ms",
        ),
        Figure("once-late-redis", "the same on Redis, in another process", late, "<=", 25, "ms"),
        Figure("once-bytes", "Once in memory, 1,000,000 pending: bytes per event", million, unit="B"),
        Figure("once-kept", "the same, idle for a day: what is kept", million, "<=", 0, "count"),
        Figure(
            "once-redis-bytes",
            "Once on Redis, 1,000,000 pending: bytes per event",
            million_on_redis,
            unit="B",
        ),
        Figure("once-redis-slowest", "the same, longest command but a snapshot", million_on_redis, unit="ms"),
        Figure("once-redis-left", "the same, idle for a day: bytes left", million_on_redis, unit="B"),
        Figure("once-redis-endless", "the same: keys that do not expire", million_on_redis, "<=", 0, "keys"),
    ),
)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    {"watch": watch_from_afar}[given["what"]](given)
