"""A crowd that waits on one ledger of a Redis: is any of them failed, what do they get, and what does the server feel.

Each crowd is hundreds or thousands of tasks, or threads, of one process with the default options, and each of them asks
again when it was served. It joins, is measured for some seconds while all of it waits, and goes home. A bystander, in a
process of its own, asks the same server for `PING` all the time.

The provable ceiling of `n` permits with a gap is one use of each per gap, so the use `n` after another one comes a gap
later at the earliest. The share of the ceiling is the gap over the mean of those spans: it does not depend on where in
a burst the measurement begins and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

import headway
from bench.alone import ROOT, in_own_process
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading, Section
from bench.server import private_server

SECOND = 10**9
PATIENCE = 60.0
PAUSE = 0.002


@dataclass(frozen=True)
class Ledger:
    """A limit that a crowd waits for, and which of its parts binds."""

    title: str
    limit: Any
    count: int
    options: dict[str, Any]
    cost: Any = 1


LEDGERS = {
    "remote": Ledger('`"100/s"` with a remote', "100/s", 100, {"remote": True}),
    "readme": Ledger('`"10/s; 500/minute; 5 concurrent"`', "10/s; 500/minute; 5 concurrent", 10, {}),
    "metrics": Ledger(
        '`{"requests": "100/s", "tokens": "90000/minute"}`',
        {"requests": "100/s", "tokens": "90000/minute"},
        100,
        {},
        {"tokens": 7},
    ),
}
CROWDS = {
    "200-tasks": "200 tasks",
    "5000-tasks": "5,000 tasks",
    "20000-tasks": "20,000 tasks",
    "2000-threads": "2,000 threads",
}


class Crowd:
    """The waiters, when each of them had its permit, and what went wrong."""

    def __init__(self, ledger: Ledger, url: str, many: int, seconds: float) -> None:
        self.limiter = headway.Limiter(ledger.limit, name="crowd", engine=url, **ledger.options)
        self.ledger = ledger
        self.many = many
        self.seconds = seconds
        self.used: list[int] = []
        self.errors: list[BaseException] = []
        self.since = 0

    @property
    def joined(self) -> bool:
        return self.limiter.stats().waiting + len(self.errors) >= self.many - self.ledger.count

    async def _call(self) -> None:
        try:
            while True:
                async with self.limiter.hold(cost=self.ledger.cost):
                    self.used.append(time.monotonic_ns())
        except Exception as error:  # noqa: BLE001 - counted
            self.errors.append(error)

    async def as_tasks(self) -> None:
        tasks = [asyncio.create_task(self._call()) for _ in range(self.many)]
        while not self.joined:  # noqa: ASYNC110 - it is a number that is looked at, of the limiter's
            await asyncio.sleep(0.02)
        self.since = time.monotonic_ns()
        await asyncio.sleep(self.seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def as_threads(self) -> None:
        def call() -> None:
            try:
                while True:
                    with self.limiter.hold(cost=self.ledger.cost):
                        self.used.append(time.monotonic_ns())
            except headway.LimiterClosed:
                pass
            except Exception as error:  # noqa: BLE001 - counted
                self.errors.append(error)

        threads = [threading.Thread(target=call) for _ in range(self.many)]
        for thread in threads:
            thread.start()
        while not self.joined:
            time.sleep(0.02)
        self.since = time.monotonic_ns()
        time.sleep(self.seconds)
        self.limiter.close()
        for thread in threads:
            thread.join(PATIENCE)

    def share(self) -> float:
        """Of the provable ceiling, while all of them waited."""
        gap = self.limiter._shared.ledgers.registry.rules[0].gap * 1000  # type: ignore[attr-defined]
        count = self.ledger.count
        used = sorted(at for at in self.used if at >= self.since)
        spans = [later - earlier for earlier, later in zip(used, used[count:], strict=False)]
        if not spans:
            raise NotMeasured(f"{len(used)} were served of {self.many}, and fewer than two times {count}")
        return float(gap * len(spans) / sum(spans))


@contextlib.contextmanager
def bystander(url: str) -> Iterator[list[float]]:
    """Another client's round trips, in seconds, which are there when it ends."""
    trips: list[float] = []
    command = [sys.executable, "-m", "bench.waiters", url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdin
        assert other.stdout
        if other.stdout.readline() != "ready\n":
            raise NotMeasured("the bystander did not start")
        try:
            yield trips
        finally:
            said, _ = other.communicate("end\n", timeout=PATIENCE)
            trips += json.loads(said)


def stand_by(url: str) -> None:
    """The bystander's life."""
    prefer(0)
    ended, trips = threading.Event(), []

    def listen() -> None:
        sys.stdin.readline()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    with contextlib.closing(redis.Redis.from_url(url)) as client:
        client.ping()
        print("ready", flush=True)
        while not ended.wait(PAUSE):
            begin = time.perf_counter()
            client.ping()
            trips.append(time.perf_counter() - begin)
    print(json.dumps(trips), flush=True)


def wait(which: str, crowd: str, seconds: float) -> dict[str, Any]:
    """One crowd on a server of its own."""
    many, _, kind = crowd.partition("-")
    with private_server() as url, contextlib.closing(redis.Redis.from_url(url)) as client:
        client.config_set("slowlog-log-slower-than", 500)
        client.config_set("slowlog-max-len", 10_000)
        prefer(client.info("server")["process_id"])
        waiting = Crowd(LEDGERS[which], url, int(many), seconds)
        with bystander(url) as trips:
            if kind == "tasks":
                asyncio.run(waiting.as_tasks())
            else:
                waiting.as_threads()
            leave(client)
        slow = [entry["duration"] for entry in client.slowlog_get(10_000) if is_script(entry)]
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    return {
        "share": waiting.share(),
        "errors": len(waiting.errors),
        "script": max(slow, default=0) / 1000,
        "ping": sorted(trips)[int(0.99 * len(trips))] * 1000,
        "note": f"{len(waiting.used)} uses, {calls} script calls; "
        f"scripts above 1 ms: {sum(took > 1000 for took in slow)}",
    }


def prefer(process: int) -> None:
    """Let a process go before others, where that is allowed: a server mostly has a machine to itself."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, process, -15)


def is_script(entry: dict[str, Any]) -> bool:
    return bool(entry["command"].startswith(b"EVALSHA"))


def leave(client: redis.Redis) -> None:
    """Until nothing is left of the queue."""
    end = time.monotonic() + PATIENCE
    while client.exists("headway:{crowd}:q"):
        if time.monotonic() > end:
            raise NotMeasured("waiters that have left are still in the queue")
        time.sleep(0.01)


def probe(which: str, effort: Effort) -> Findings:
    """All crowds on one kind of ledger: a share for each, and the worst of the rest."""
    crowds = ["200-tasks", "5000-tasks"] if effort.quick else [*CROWDS]
    found = Findings()
    results = {crowd: wait(which, crowd, 3 if effort.quick else 8) for crowd in crowds}
    for crowd, result in results.items():
        found.readings[f"waiters-{which}-{crowd}"] = Reading(result["share"], note=result["note"])
    for what in ("errors", "script", "ping"):
        worst = max(results, key=lambda crowd: results[crowd][what])
        found.readings[f"waiters-{which}-{what}"] = Reading(results[worst][what], note=CROWDS[worst])
    return found


@in_own_process()
def remote(effort: Effort) -> Findings:
    return probe("remote", effort)


@in_own_process()
def readme(effort: Effort) -> Findings:
    return probe("readme", effort)


@in_own_process()
def metrics(effort: Effort) -> Findings:
    return probe("metrics", effort)


def figures() -> Iterator[Figure]:
    for which, ledger in LEDGERS.items():
        own = globals()[which]
        yield from (
            Figure(
                f"waiters-{which}-{crowd}",
                f"Redis, {title} waiting on {ledger.title}: share of the provable ceiling",
                own,
                ">=",
                0.98,
                "%",
            )
            for crowd, title in CROWDS.items()
        )
        yield Figure(f"waiters-{which}-errors", "the same, all crowds: errors", own, "<=", 0, "count")
        yield Figure(f"waiters-{which}-script", "the same: the slowest script", own, "<=", 5, "ms")
        yield Figure(f"waiters-{which}-ping", "the same: `PING` of another client, p99", own, "<=", 10, "ms")


SECTION = Section("waiters", "Crowds on one shared ledger", tuple(figures()))


if __name__ == "__main__":
    stand_by(sys.argv[1])
