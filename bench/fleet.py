"""Many waiters on Redis: does an audit at the place of use see the limit kept, and what does waiting cost.

Workers are processes (`python -m bench.fleet`, see `crew.py`). Each writes down when it used a permit, on the machine's
monotonic clock, which all of them share.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import redis

import headway
from bench.alone import in_own_process
from bench.crew import answer, answers, crew, start, wait_for_start
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading
from bench.server import private_server, script_calls

SECOND = 10**9
WAITERS = 200
RATE = 20
LIMITS: dict[str, Any] = {
    "window": headway.Window(RATE, per=1, remote=headway.Remote()),
    "bucket": headway.Bucket("100/s", burst=20),
    "spacing": headway.Spacing("200ms"),
}


# -- workers --------------------------------------------------------------------------------------------------


async def take_one_each(limiter: headway.Limiter, tasks: int) -> list[int]:
    """Every task waits for one permit, and notes when it is used: between the grant and the release."""

    async def use() -> int:
        async with limiter.hold():
            return time.monotonic_ns()

    return list(await asyncio.gather(*(use() for _ in range(tasks))))


async def take_all(limiter: headway.Limiter, tasks: int, seconds: float) -> list[int]:
    """Every task acquires again and again, and ends when it would be served too late."""
    end = time.monotonic_ns() + int(seconds * SECOND)
    used: list[int] = []

    async def demand() -> None:
        with contextlib.suppress(headway.RateLimited):
            while (now := time.monotonic_ns()) < end:
                await limiter.acquire_async(timeout=(end - now) / SECOND)
                used.append(time.monotonic_ns())

    await asyncio.gather(*(demand() for _ in range(tasks)))
    return used


def work(order: dict[str, Any]) -> None:
    """A worker's life."""
    # It may wait for long before the first answer on a busy machine, and that is not what is measured.
    limiter = headway.Limiter(LIMITS[order["limit"]], name="fleet", engine=order["url"], engine_timeout=5)
    limiter.peek()
    wait_for_start()
    if order["seconds"]:
        used = asyncio.run(take_all(limiter, order["tasks"], order["seconds"]))
    else:
        used = asyncio.run(take_one_each(limiter, order["tasks"]))
    time.sleep(0.1)  # the last releases are posted and not waited for
    answer(used)


def fleet(url: str, limit: str, processes: int, tasks: int, seconds: float = 0) -> tuple[list[int], int]:
    """When permits were used, in order, and how often a script was called for it."""
    order = {"url": url, "limit": limit, "tasks": tasks, "seconds": seconds}
    with (
        crew("bench.fleet", order, processes) as workers,
        contextlib.closing(redis.Redis.from_url(url)) as client,
    ):
        calls = script_calls(client)
        start(workers)
        used = sorted(itertools.chain.from_iterable(answers(workers)))
        return used, script_calls(client) - calls


# -- probes ---------------------------------------------------------------------------------------------------


@in_own_process()
def waiters(effort: Effort) -> Findings:
    """Tasks of one process in the queue of a slow bucket."""
    many = WAITERS // 5 if effort.quick else WAITERS
    served: list[int] = []

    with private_server() as url, contextlib.closing(redis.Redis.from_url(url)) as client:
        limiter = headway.Limiter(f"{RATE}/s burst 1", name="waiters", engine=url)
        limiter.peek()
        calls = script_calls(client)

        async def wait(number: int) -> None:
            await limiter.acquire_async()
            served.append(number)

        async def main() -> float:
            start = time.perf_counter()
            await asyncio.gather(*(wait(number) for number in range(many)))
            return time.perf_counter() - start

        took = asyncio.run(main())
        calls = script_calls(client) - calls
    ideal = (many - 1) / RATE
    inversions = sum(later < earlier for earlier, later in itertools.pairwise(served))
    return Findings(
        {
            "redis-waiters-calls": Reading(calls / many, note=f"{calls} calls for {many} grants"),
            "redis-waiters-time": Reading(took / ideal, note=f"{took:.4f} s, ideally {ideal:.4f} s"),
            "redis-waiters-order": Reading(inversions),
        }
    )


def most_within(used: Sequence[int], span: int) -> int:
    """The most in any half-open span.

    >>> most_within([0, 4, 9, 10, 11], 10)
    4
    """
    most = first = 0
    for last, at in enumerate(used):
        while at - used[first] >= span:
            first += 1
        most = max(most, last - first + 1)
    return most


@in_own_process()
def crowd(effort: Effort) -> Findings:
    """Processes with tasks that wait for permits which are out."""
    tasks = 10 if effort.quick else WAITERS // 4
    with private_server() as url:
        used, calls = fleet(url, "window", processes=4, tasks=tasks)
    if len(used) != 4 * tasks:
        raise NotMeasured(f"{len(used)} of {4 * tasks} were served")
    took = (used[-1] - used[0]) / SECOND
    return Findings(
        {
            "redis-crowd-most": Reading(most_within(used, SECOND), note=f"{len(used)} uses in {took:.2f} s"),
            "redis-crowd-calls": Reading(calls / len(used), note=f"{calls} calls for {len(used)} grants"),
        }
    )


@in_own_process()
def demand(effort: Effort) -> Findings:
    """All that a bucket has, for five seconds."""
    seconds = 2 if effort.quick else 5
    with private_server() as url:
        used, _ = fleet(url, "bucket", processes=4, tasks=10, seconds=seconds + 0.2)
    full = 20 + 100 * seconds
    granted = sum(at - used[0] <= seconds * SECOND for at in used)
    note = f"{granted} of {full}"
    return Findings(
        {
            "redis-demand-least": Reading(granted / full, note=note),
            "redis-demand-most": Reading(granted / full, note=note),
        }
    )


@in_own_process()
def spacing(effort: Effort) -> Findings:
    """One every 200 ms, by eight processes; for as long as one sleeper that wakes too late does not decide it."""
    seconds = 3 if effort.quick else 30
    with private_server() as url:
        used, _ = fleet(url, "spacing", processes=8, tasks=1, seconds=seconds)
    if len(used) < 2:
        raise NotMeasured("fewer than two were served")
    gaps = [later - earlier for earlier, later in itertools.pairwise(used)]
    interval = 0.2 * SECOND
    kept = len(gaps) * interval / (used[-1] - used[0])
    note = f"{len(used)} uses, closest {min(gaps) / 1e6:.2f} ms, furthest {max(gaps) / 1e6:.2f} ms"
    return Findings(
        {
            "redis-spacing-closest": Reading(min(gaps) / interval, note=note),
            "redis-spacing-rate": Reading(kept),
        }
    )


WAIT = f'Redis, {WAITERS} tasks waiting at `"{RATE}/s burst 1"`'
CROWD = f"Redis, 4 processes x {WAITERS // 4} waiters on `Window({RATE}, per=1, remote=Remote())`"
DEMAND = 'Redis, `"100/s burst 20"`, 5 s of full demand from 4 processes'
SPACING = 'Redis, `"1 every 200ms"`, 8 processes, audited at use'

FIGURES = (
    Figure("redis-waiters-calls", f"{WAIT}: script calls per grant", waiters, "<=", 1.2, "calls"),
    Figure("redis-waiters-time", "the same: time over ideal", waiters, "<=", 1.02, "x ideal"),
    Figure("redis-waiters-order", "the same: order inversions", waiters, "<=", 0, "count"),
    Figure("redis-crowd-most", f"{CROWD}: most in any second at use", crowd, "<=", RATE, "count"),
    Figure("redis-crowd-calls", "the same: script calls per grant", crowd, "<=", 3, "calls"),
    Figure("redis-demand-least", f"{DEMAND}: share of 520 grants, at least", demand, ">=", 0.99, "%"),
    Figure("redis-demand-most", "the same: at most", demand, "<=", 1, "%"),
    Figure("redis-spacing-closest", f"{SPACING}: closest two over the interval", spacing, ">=", 1, "x"),
    Figure("redis-spacing-rate", "the same: share of the rate", spacing, ">=", 0.97, "%"),
)


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
