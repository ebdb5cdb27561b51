"""One process on Redis: what a decision costs beside a raw `INCR` of redis-py, the least that a round trip can cost.

All sides talk to one private Valkey on TCP loopback and take turns, as in memory. The peers are called as their manuals
do it, each with a limit too high to matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import redis
import redis.asyncio

import headway
from bench import fleet
from bench.alone import in_own_process
from bench.figure import Effort, Figure, Findings, Reading, Row, Section
from bench.server import private_server
from bench.timing import Side, ratio, take_turns, undisturbed

BUCKET = "1000000/s burst 10000"
MANY = 1_000_000
TASKS = 200
STEADY = 25
SLICE_MS = 10.0


def raw(url: str, *, awaits: bool = False) -> Side:
    if awaits:
        return Side('await f("counter")', {"f": redis.asyncio.Redis.from_url(url).incr}, awaits=True)
    return Side('f("counter")', {"f": redis.Redis.from_url(url).incr})


def bucket(url: str, *, awaits: bool = False) -> Side:
    limiter = headway.Limiter(BUCKET, name="bucket", engine=url)
    if awaits:
        return Side(
            "await f()", {"f": limiter.try_acquire_async}, awaits=True, granted=lambda: none_denied(limiter)
        )
    return Side("f()", {"f": limiter.try_acquire}, granted=lambda: none_denied(limiter))


def window(url: str, *, awaits: bool = False) -> Side:
    """Acquired and completed: both travel, and both are counted."""
    limit = headway.Window(MANY, per=1, remote=headway.Remote())
    limiter = headway.Limiter(limit, name="window", engine=url)
    if awaits:
        return Side(
            "(await f()).complete()",
            {"f": limiter.acquire_async},
            awaits=True,
            granted=lambda: none_denied(limiter),
        )
    return Side("f().complete()", {"f": limiter.acquire}, granted=lambda: none_denied(limiter))


def none_denied(limiter: headway.Limiter) -> bool:
    return limiter.stats().denied == 0


def per_second(rounds: Sequence[tuple[float, ...]], of: int, over: int) -> Reading:
    """Decisions per second of a side over those of another: the other's time over its own."""
    return replace(ratio(rounds, over, of), ns=undisturbed([taken[of] for taken in rounds]))


@in_own_process()
def serial(effort: Effort) -> Findings:
    with private_server() as url:
        rounds = take_turns([bucket(url), window(url), raw(url)], effort, slice_ms=SLICE_MS)
    return Findings(
        {"redis-bucket": per_second(rounds, 0, 2), "redis-window": per_second(rounds, 1, 2)},
    )


@in_own_process()
def awaited(effort: Effort) -> Findings:
    with private_server() as url:
        sides = [bucket(url, awaits=True), window(url, awaits=True), raw(url, awaits=True)]
        rounds = take_turns(sides, effort, slice_ms=SLICE_MS)
    return Findings(
        {
            "redis-bucket-async": per_second(rounds, 0, 2),
            "redis-window-async": per_second(rounds, 1, 2),
        }
    )


@in_own_process()
def together(effort: Effort) -> Findings:
    """Many tasks that decide at once: 25 times each, and once each.

    Of tasks that are made for one decision, making and ending them is the greater part of the time; how much of it is
    told by tasks that only wait once for each other. redis-py's default pool raises with so many tasks: there is one
    with a connection for each of them (the faster one), and the one that waits for a free connection, as it comes.
    """
    with private_server() as url:
        limiter = headway.Limiter(BUCKET, name="together", engine=url)

        def incr(pool: redis.asyncio.ConnectionPool) -> Callable[[], Any]:
            return partial(redis.asyncio.Redis(connection_pool=pool).incr, "counter")

        def connections() -> redis.asyncio.ConnectionPool:
            return redis.asyncio.ConnectionPool.from_url(url, max_connections=TASKS)

        def crowd(call: Callable[[], Any], each: int) -> Side:
            async def decide() -> None:
                for _ in range(each):
                    await call()

            async def all_at_once() -> None:
                await asyncio.gather(*(decide() for _ in range(TASKS)))

            return Side("await f()", {"f": all_at_once}, awaits=True, granted=lambda: none_denied(limiter))

        found = Findings()

        def compare(name: str, call: Callable[[], Any], raw: Callable[[], Any], each: int = 1) -> None:
            rounds = take_turns([crowd(call, each), crowd(raw, each)], effort, slice_ms=4 * SLICE_MS)
            reading = per_second(rounds, 0, 1)
            found.readings[name] = replace(reading, ns=(reading.ns or 0) / TASKS / each)

        compare("redis-tasks", limiter.acquire_async, incr(connections()), each=STEADY)
        compare("redis-tasks-once", limiter.acquire_async, incr(connections()))
        compare("redis-tasks-nothing", Turnstile(TASKS).wait, incr(connections()))
        waiting = redis.asyncio.BlockingConnectionPool.from_url(url)
        compare("redis-tasks-waiting-pool", limiter.acquire_async, incr(waiting))
    return found


class Turnstile:
    """Lets tasks pass when so many have come: the least that can be done together."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._here: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        one = asyncio.get_running_loop().create_future()
        self._here.append(one)
        if len(self._here) == self._size:
            for other in self._here:
                other.set_result(None)
            self._here.clear()
        await one


def limits_side(url: str, strategy: str) -> Side:
    import limits

    limiter = getattr(limits.strategies, strategy)(limits.storage.RedisStorage(url))
    item = limits.RateLimitItemPerSecond(MANY)

    return Side(
        "f(item)",
        {"f": limiter.hit, "item": item},
        granted=lambda: limiter.hit(item),
        before=lambda: limiter.clear(item),
    )


def pyrate_side(url: str) -> Side:
    from pyrate_limiter import Limiter, Rate, RedisBucket

    kept = RedisBucket.init([Rate(MANY, 1000)], redis.Redis.from_url(url), "pyrate")
    limiter = Limiter(kept)
    return Side(
        'f("name", blocking=False)',
        {"f": limiter.try_acquire},
        granted=lambda: bool(limiter.try_acquire("name", blocking=False)),
        before=kept.flush,
    )


def throttled_side(url: str, algorithm: str) -> Side:
    from throttled import RedisStore, Throttled, per_sec

    limiter = Throttled(
        key="name", using=algorithm, quota=per_sec(MANY, burst=MANY), store=RedisStore(server=url)
    )
    return Side("f()", {"f": limiter.limit}, granted=lambda: not limiter.limit().limited)


PEERS: dict[str, tuple[str, str, Callable[[str], Side]]] = {
    "redis-limits-moving": (
        "limits",
        "moving window",
        lambda url: limits_side(url, "MovingWindowRateLimiter"),
    ),
    "redis-limits-fixed": (
        "limits",
        "fixed window",
        lambda url: limits_side(url, "FixedWindowRateLimiter"),
    ),
    "redis-pyrate": ("pyrate-limiter", "sliding log", pyrate_side),
    "redis-throttled-gcra": ("throttled-py", "GCRA", lambda url: throttled_side(url, "gcra")),
    "redis-throttled-bucket": (
        "throttled-py",
        "token bucket",
        lambda url: throttled_side(url, "token_bucket"),
    ),
}


@in_own_process()
def peers(effort: Effort) -> Findings:
    found = Findings()
    ours: list[float] = []
    with private_server() as url:
        for name, (package, use, make) in PEERS.items():
            rounds = take_turns([make(url), bucket(url), raw(url)], effort, slice_ms=SLICE_MS)
            found.readings[name] = per_second(rounds, 0, 2)
            ours += [taken[1] for taken in rounds]
            over_ours = ratio(rounds, 0, 1)
            row = Row("redis", f"{package} {version(package)}, {use}", over_ours.ns or 0.0, over_ours.value)
            found.rows.append(row)
        over_ours = ratio(rounds, 2, 1)
        found.rows.append(Row("redis", "raw `INCR`, redis-py", over_ours.ns or 0.0, over_ours.value))
    found.rows.append(Row("redis", "headway, `try_acquire()`", undisturbed(ours), ours=True))
    return found


OVER = "decisions/s over raw `INCR`"

SECTION = Section(
    "redis",
    "On Redis",
    (
        Figure("redis-bucket", f"Redis, Bucket, one after another: {OVER}", serial, ">=", 0.9, "x"),
        Figure("redis-window", "the same, Window with Remote, completed", serial, ">=", 0.45, "x"),
        Figure("redis-bucket-async", f"Redis, Bucket, asyncio: {OVER}", awaited, ">=", 0.75, "x"),
        Figure("redis-window-async", "the same, Window with Remote, completed", awaited, ">=", 0.4, "x"),
        Figure(
            "redis-tasks",
            f"Redis, {TASKS} tasks that decide at once, {STEADY} times each: {OVER} by as many tasks",
            together,
            ">=",
            10,
            "x",
        ),
        Figure("redis-tasks-once", "the same, tasks made for one decision each", together, unit="x"),
        Figure(
            "redis-tasks-nothing", "the same, tasks that only wait once for each other", together, unit="x"
        ),
        Figure(
            "redis-tasks-waiting-pool",
            "one decision each, over raw `INCR` on redis-py's pool that waits",
            together,
            unit="x",
        ),
        *fleet.FIGURES,
        *(
            Figure(name, f"{package}, {use}: {OVER}", peers, unit="x")
            for name, (package, use, _) in PEERS.items()
        ),
    ),
)
