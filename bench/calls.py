"""One caller, one decision: what a permit that is there costs, in units of reading the clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import headway
from bench.alone import in_own_process
from bench.figure import Effort, Figure, Findings, NotMeasured, Probe, Section
from bench.timing import Side, over_clock

HUGE_BUCKET = "1000000000/s burst 1000000000"
HUGE_WINDOW = "1000000000/s"
EXACT_WINDOW = "1000/us"  # the same rate, few enough permits for the exact log
LIVE_KEYS = 10_000


def unkeyed() -> Side:
    """Ours in every unkeyed comparison."""
    limiter = headway.Limiter(HUGE_BUCKET)
    return Side("f()", {"f": limiter.try_acquire}, granted=lambda: bool(limiter.try_acquire()))


def window() -> Side:
    limiter = headway.Limiter(HUGE_WINDOW)
    return Side("f()", {"f": limiter.try_acquire}, granted=lambda: bool(limiter.try_acquire()))


def exact_window() -> Side:
    limiter = headway.Limiter(EXACT_WINDOW)
    return Side("f()", {"f": limiter.try_acquire}, granted=lambda: bool(limiter.try_acquire()))


def remote_window() -> Side:
    limiter = headway.Limiter(HUGE_WINDOW, remote=headway.Remote())

    def granted() -> bool:
        permit = limiter.try_acquire()
        if permit:
            permit.complete()
        return bool(permit)

    return Side("f().complete()", {"f": limiter.try_acquire}, granted=granted)


def denied(limit: str = "1/day burst 1", statement: str = "f()") -> Side:
    """Under attack most answers are "no"."""
    limiter = headway.Limiter(limit)
    limiter.try_acquire()
    return Side(statement, {"f": limiter.try_acquire}, granted=lambda: not limiter.try_acquire())


def denied_window() -> Side:
    return denied("1/day")


def denied_read() -> Side:
    return denied(statement="f().retry_after")


def denied_window_read() -> Side:
    return denied("1/day", "f().retry_after")


def crowd_of_keys() -> headway.Limiter:
    """A limiter with live keys: each has an hour of debt to wait off, so none may be reclaimed meanwhile."""
    limiter = headway.Limiter("1000000/hour burst 1000000000")
    for number in range(LIVE_KEYS):
        limiter.try_acquire(f"user:{number}", cost=1_000_000)
    return limiter


def all_live(limiter: headway.Limiter, key: str) -> bool:
    return bool(limiter.try_acquire(key)) and limiter.stats().keys == LIVE_KEYS


def literal_key() -> Side:
    """Ours in every keyed comparison."""
    limiter = crowd_of_keys()
    return Side('f("user:42")', {"f": limiter.try_acquire}, granted=lambda: all_live(limiter, "user:42"))


def built_key() -> Side:
    """The same key as the literal one, but a string that was never seen before: it must be hashed and compared."""
    limiter = crowd_of_keys()
    return Side(
        'f(f"user:{key}")',
        {"f": limiter.try_acquire},
        net_of='f"user:{key}"',
        over=[42] * LIVE_KEYS,
        granted=lambda: all_live(limiter, "user:42"),
    )


def built_keys() -> Side:
    """All keys in random order: what the caches of the machine do not have is in here, too."""
    limiter = crowd_of_keys()
    numbers = list(range(LIVE_KEYS))
    random.Random(42).shuffle(numbers)
    return Side(
        'f(f"user:{key}")',
        {"f": limiter.try_acquire},
        net_of='f"user:{key}"',
        over=numbers,
        granted=lambda: all_live(limiter, "user:42"),
    )


def with_statement() -> Side:
    limiter = headway.Limiter(HUGE_BUCKET)
    return Side("with limiter: pass", {"limiter": limiter}, granted=lambda: bool(limiter.try_acquire()))


def trivial() -> int:
    return 1


def decorated(limiter: Callable[[], headway.Limiter]) -> Side:
    function: Any = headway.throttle(limiter())(trivial)
    return Side("f()", {"f": function}, granted=lambda: function() == 1)


def decorated_bucket() -> Side:
    """Ours beside a peer that is a decorator."""
    return decorated(lambda: headway.Limiter(HUGE_BUCKET))


def decorated_remote_window() -> Side:
    return decorated(lambda: headway.Limiter(HUGE_WINDOW, remote=headway.Remote()))


def awaited() -> Side:
    """Ours beside a peer that is awaited."""
    limiter = headway.Limiter(HUGE_BUCKET)

    def real_coroutine() -> bool:
        coroutine = limiter.acquire_async()
        return asyncio.iscoroutine(coroutine) and granted_at_once(coroutine)

    return Side("await f()", {"f": limiter.acquire_async}, awaits=True, granted=real_coroutine)


def granted_at_once(coroutine: Any) -> bool:
    """Whether a coroutine ends in its first step: it was granted, and did not wait."""
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    coroutine.close()
    return False


def probe(name: str, side: Callable[[], Side], note: str = "") -> Probe:
    """A probe that reads one figure: `side` over the clock."""

    def read(effort: Effort) -> Findings:
        return Findings({name: over_clock(side, effort, note=note)})

    return read


@in_own_process(times=5, HEADWAY_PURE="1")
def interpreted(effort: Effort) -> Findings:
    if headway.compiled:
        raise NotMeasured("HEADWAY_PURE=1 did not give the interpreted form")
    return Findings({"interpreted": over_clock(unkeyed, effort)})


def figure(
    name: str, title: str, side: Callable[[], Side], bar: float | None = None, note: str = ""
) -> Figure:
    return Figure(name, title, probe(name, side, note), bar=bar)


SECTION = Section(
    "calls",
    "One caller",
    (
        figure("bucket", "`Bucket`, `try_acquire()`", unkeyed, 1.3),
        figure("window", "`Window`, `try_acquire()`", window, 1.5),
        figure("window-log", "`Window` of 1,000 permits (exact log), `try_acquire()`", exact_window),
        figure("window-remote", "`Window` with `Remote`, `try_acquire()` + `complete()`", remote_window, 2.5),
        figure("denied", "`Bucket`, `try_acquire()` that is denied", denied, 3),
        figure("denied-window", "`Window`, `try_acquire()` that is denied", denied_window, 3),
        figure("denied-read", "`Bucket`, denied, with `.retry_after` read", denied_read, 5),
        figure("denied-window-read", "`Window`, denied, with `.retry_after` read", denied_window_read, 5),
        figure("key-literal", '10,000 live keys, `try_acquire("user:42")`', literal_key, 2),
        figure("key-built", "10,000 live keys, a freshly built string, net of building it", built_key, 3),
        figure(
            "keys-built", "10,000 live keys in random order, freshly built, net of building them", built_keys
        ),
        figure("with", "`with limiter:`", with_statement, 3),
        figure("decorator", "decorated trivial `def`, `Bucket`", decorated_bucket, 2.5),
        figure(
            "decorator-remote",
            "decorated trivial `def`, `Window` with `Remote`",
            decorated_remote_window,
            3.5,
        ),
        figure("await", "`await limiter.acquire_async()`, permit available", awaited, 3),
        Figure("interpreted", "interpreted form, `Bucket`, `try_acquire()`", interpreted, bar=16),
    ),
)
