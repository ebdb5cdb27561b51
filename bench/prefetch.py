"""Tokens at hand (`prefetch=True`): what a local decision costs, and how few calls, and how little else, it takes.

A decision is timed like one in memory, on limits too high to matter. What takes its time is measured in real time, all
of it at once: for twenty seconds four limiters of one process are asked on a schedule, each for one figure, and beside
them a process that has borrowed tokens does nothing. The exact shares and limits are checked in virtual time
(`python -m headway.lab.leases`); here they are seen once on a real server and a real clock.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

import redis

import headway
from bench.alone import in_own_process
from bench.calls import HUGE_BUCKET, HUGE_WINDOW
from bench.crew import answer, answers, crew, start, wait_for_start
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading, Section
from bench.fleet import most_within
from bench.server import private_server, script_calls
from bench.timing import SETUPS, Side, clock_side, ratio, spread, take_turns

SECOND = 10**9
ONCE = "1/day burst 1"
FAST = "1000000/s burst 1000000"
PROCESSES = 4
TTL = 3.0
"""Of `prefetch=True`."""


def borrower(limit: Any, name: str, url: str) -> headway.Limiter:
    """A limiter with tokens at hand. On a busy machine the first answer may take long; that is not what is measured."""
    return headway.Limiter(limit, name=name, engine=url, prefetch=True, engine_timeout=5)


# -- one caller -----------------------------------------------------------------------------------------------


def local(limiter: headway.Limiter, verb: str) -> Side:
    """A verb of a limiter in memory, or of one that has borrowed tokens."""

    def granted() -> bool:
        return bool(limiter.try_acquire()) and limiter.stats().denied == 0

    return Side("f()", {"f": getattr(limiter, verb)}, granted=granted)


@in_own_process()
def decisions(effort: Effort) -> Findings:
    found = Findings()
    part = replace(effort, rounds=effort.rounds // SETUPS // 2)
    with private_server() as url:
        for kind, limit in (("bucket", HUGE_BUCKET), ("window", HUGE_WINDOW)):
            rounds: list[tuple[float, ...]] = []
            for number in range(SETUPS):
                memory = headway.Limiter(limit)
                with contextlib.closing(borrower(limit, f"{kind}-{number}", url)) as ours:
                    ours.acquire()
                    verbs = ("try_acquire", "acquire")
                    sides = [local(limiter, verb) for verb in verbs for limiter in (ours, memory)]
                    rounds += take_turns([*sides, clock_side()], part)
            for name, top in ((f"prefetch-{kind}", 0), (f"prefetch-{kind}-acquire", 2)):
                found.readings[name] = ratio(rounds, top, 4)
                found.readings[f"{name}-memory"] = ratio(rounds, top, top + 1)
        with contextlib.closing(borrower(ONCE, "denied", url)) as ours:
            ours.acquire()
            rounds = take_turns(
                [refused(ours), refused(spent()), clock_side()], replace(effort, rounds=effort.rounds // 2)
            )
        found.readings["prefetch-denied"] = ratio(rounds, 0, 2)
        found.readings["prefetch-denied-memory"] = ratio(rounds, 0, 1)
    return found


def refused(limiter: headway.Limiter) -> Side:
    return Side("f()", {"f": limiter.try_acquire}, granted=lambda: not limiter.try_acquire())


def spent() -> headway.Limiter:
    limiter = headway.Limiter(ONCE)
    limiter.acquire()
    return limiter


# -- many processes -------------------------------------------------------------------------------------------


def count(limiter: headway.Limiter, seconds: float, at_once: int) -> tuple[int, int]:
    """How many decisions are made in that time, and how many of them grant."""
    before, done, f = limiter.stats(), 0, limiter.try_acquire
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(at_once):
            f()
        done += at_once
    return done, limiter.stats().granted - before.granted


def hurry(order: dict[str, Any]) -> None:
    """A worker that decides as fast as it can, with and without prefetch by turns."""
    url, seconds = order["url"], order["seconds"]
    ours = borrower(FAST, "with", url)
    plain = headway.Limiter(FAST, name="without", engine=url, engine_timeout=5)
    ours.acquire()
    plain.acquire()
    wait_for_start()
    answer([(count(ours, seconds, 500), count(plain, seconds, 5)) for _ in range(order["rounds"])])


@in_own_process()
def processes(effort: Effort) -> Findings:
    rounds, seconds = (1, 1.0) if effort.quick else (3, 2.0)
    with (
        private_server() as url,
        crew(
            __name__, {"what": "hurry", "url": url, "seconds": seconds, "rounds": rounds}, PROCESSES
        ) as workers,
    ):
        start(workers)
        said = answers(workers)
    # By round: decisions and grants with prefetch, then without, of all workers together.
    sums = [
        [sum(worker[turn][side][what] for worker in said) / seconds for side in (0, 1) for what in (0, 1)]
        for turn in range(rounds)
    ]
    many, granted, few, _ = (statistics.median(column) for column in zip(*sums, strict=True))
    note = f"{many:,.0f} decisions/s with, {few:,.0f} without"
    shares = f"{granted:,.0f} grants/s; the limit allows {1e6 + 1e6 / seconds:,.0f} in {seconds:g} s, with its burst"
    return Findings(
        {
            "prefetch-processes": middle([with_ / plain for with_, _, plain, _ in sums], note),
            "prefetch-processes-granted": middle([yes / plain for _, yes, _, plain in sums], shares),
        }
    )


def middle(samples: list[float], note: str) -> Reading:
    return spread(samples, note=note) if len(samples) > 1 else Reading(samples[0], note=note)


# -- on a schedule --------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """A limiter that is asked in some of the thousand ticks of every second."""

    limit: headway.Limit
    ticks: range  # which ones of every ten
    limiter: Any = None
    asked: int = 0
    used: list[int] = field(default_factory=list)

    def open(self, name: str, url: str) -> None:
        self.limiter = borrower(self.limit, name, url)

    def ask(self) -> None:
        self.asked += 1
        if self.limiter.try_acquire():
            self.used.append(time.monotonic_ns())

    @property
    def share(self) -> float:
        return len(self.used) / self.asked


def pace(limiters: list[Asked], seconds: float) -> None:
    """Ask each of them on schedule. What is a little late is made up for, but not a long stop of this process: requests
    that come all at once are another demand."""
    due = time.monotonic_ns()
    for tick in range(round(1000 * seconds)):
        now = time.monotonic_ns()
        due = max(due + SECOND // 1000, now - SECOND // 20)
        time.sleep(max(0, due - now) / SECOND)
        for one in limiters:
            if tick % 10 in one.ticks:
                one.ask()


def idle(order: dict[str, Any]) -> None:
    """A worker that has borrowed tokens, and is asked for nothing."""
    limiter = borrower("1000/s burst 1000", "idle", order["url"])
    for _ in range(100):
        limiter.acquire()
    wait_for_start()
    calls = limiter.stats().calls
    while limiter.stats().calls == calls:  # from one call on: what is counted then are the whole intervals
        time.sleep(0.01)
    calls, cpu, begin = limiter.stats().calls, time.process_time(), time.monotonic()
    time.sleep(order["seconds"])
    took, cpu, calls = time.monotonic() - begin, time.process_time() - cpu, limiter.stats().calls - calls
    lease = limiter.peek().lease
    answer({"cpu": cpu / took, "calls": calls / took, "tokens": 0 if lease is None else lease.tokens})


@in_own_process()
def schedule(effort: Effort) -> Findings:
    seconds = 5.0 if effort.quick else 20.0
    steady = Asked(headway.Window(1000, per=1), range(10))
    near = Asked(headway.Window(1000, per=1), range(9))
    nothing = Asked(headway.Window(0, per=1), range(1))
    tight = Asked(headway.Window(10, per=10), range(1))
    limiters = [steady, near, nothing, tight]
    with (
        private_server() as url,
        crew(__name__, {"what": "idle", "url": url, "seconds": seconds}, 1) as workers,
        contextlib.closing(redis.Redis.from_url(url)) as client,
    ):
        start(workers)
        for number, one in enumerate(limiters):
            one.open(f"asked-{number}", url)
        pace([steady, near], 2.0)  # the first answer, and the first guess of what will be needed
        before, heard = [one.limiter.stats().calls for one in limiters], script_calls(client)
        for one in (steady, near):
            one.asked = 0
            one.used.clear()
        pace(limiters, seconds)
        calls = [one.limiter.stats().calls - then for one, then in zip(limiters, before, strict=True)]
        heard = script_calls(client) - heard
        [rest] = answers(workers)
        for one in limiters:
            one.limiter.close()
    if rest["tokens"] < 1:
        raise NotMeasured("the idle process has no tokens")
    per = 10_000 / steady.asked
    counted = f"{calls[0]} calls for {steady.asked} decisions, of which {100 * steady.share:.2f} % passed"
    server = f"the server heard {heard} calls meanwhile: {sum(calls)} of four limiters, the others of the idle process"
    third = TTL / 3
    return Findings(
        {
            "prefetch-calls": Reading(calls[0] * per, note=f"{counted}; {server}"),
            "prefetch-near": Reading(near.share, note=f"{len(near.used)} of {near.asked}"),
            "prefetch-zero": Reading(len(nothing.used), note=f"asked {nothing.asked} times"),
            "prefetch-tight": Reading(
                most_within(tight.used, 10 * SECOND), note=f"{len(tight.used)} of {tight.asked}"
            ),
            "prefetch-idle-cpu": Reading(rest["cpu"], note=f"with {rest['tokens']} tokens"),
            "prefetch-idle-calls": Reading(rest["calls"] * third),
        }
    )


def timed(name: str, title: str) -> tuple[Figure, Figure]:
    return (
        Figure(name, f"prefetch, {title}", decisions, "<=", 3),
        Figure(f"{name}-memory", "the same, over the same limiter in memory", decisions, "<=", 1.5, "x"),
    )


SECTION = Section(
    "prefetch",
    "With tokens at hand",
    (
        *timed("prefetch-bucket", "`Bucket`, `try_acquire()`"),
        *timed("prefetch-bucket-acquire", "`Bucket`, `acquire()`"),
        *timed("prefetch-window", "`Window`, `try_acquire()`"),
        *timed("prefetch-window-acquire", "`Window`, `acquire()`"),
        *timed("prefetch-denied", "`Bucket`, `try_acquire()` that is denied"),
        Figure(
            "prefetch-processes",
            f'prefetch, {PROCESSES} processes as fast as they can on `"{FAST}"`: decisions/s over those without',
            processes,
            ">=",
            50,
            "x",
        ),
        Figure("prefetch-processes-granted", "the same, grants only", processes, unit="x"),
        Figure(
            "prefetch-calls",
            "prefetch, `1000/s`, 1,000 decisions/s: calls per 10,000",
            schedule,
            "<=",
            30,
            "calls",
        ),
        Figure(
            "prefetch-near", "prefetch, `1000/s`, 900 decisions/s: share passed", schedule, ">=", 0.995, "%"
        ),
        Figure(
            "prefetch-zero", "prefetch, a limit of 0, 100 decisions/s: passed", schedule, "<=", 0, "count"
        ),
        Figure(
            "prefetch-tight",
            "prefetch, 10 per 10 s, 100 decisions/s: most in any 10 s",
            schedule,
            "<=",
            10,
            "count",
        ),
        Figure(
            "prefetch-idle-cpu",
            "prefetch, a process with tokens that does nothing: CPU, share of one core",
            schedule,
            "<=",
            0.001,
            "%",
        ),
        Figure("prefetch-idle-calls", "the same: calls per third of a TTL", schedule, "<=", 1, "calls"),
    ),
)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    {"hurry": hurry, "idle": idle}[given["what"]](given)
