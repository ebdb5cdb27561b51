"""Callers in threads and tasks, and how to wait for them without knowing how fast the machine is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

NEVER = 30.0
"""Seconds after which something that takes milliseconds will not happen any more."""


def eventually(holds: Callable[[], Any], what: str) -> Any:
    """Wait until `holds()` is true, and return its value."""
    end = time.monotonic() + NEVER
    while not (value := holds()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {NEVER} s")
        time.sleep(0.002)
    return value


async def eventually_async(holds: Callable[[], Any], what: str) -> Any:
    """The same in a task; `holds` may be a coroutine function."""
    end = time.monotonic() + NEVER
    while True:
        value = holds()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {NEVER} s")
        await asyncio.sleep(0.002)


def counts(limiter: Any, key: Any = None) -> tuple[int, int]:
    """What is left and what is out; of several limits, of each."""
    status = limiter.peek(key)
    parts = status.parts or (status,)
    left, out = tuple(part.remaining for part in parts), tuple(part.in_flight for part in parts)
    return (left[0], out[0]) if len(parts) == 1 else (left, out)  # type: ignore[return-value]


class Callers:
    """Calls that wait, each in a thread of its own; what they returned or raised, in the order in which they ended."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.ended: list[tuple[Any, Any]] = []

    def start(self, function: Callable[..., Any], *args: Any, label: Any = None, **options: Any) -> None:
        def run() -> None:
            try:
                outcome = function(*args, **options)
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                outcome = error
            self.ended.append((label, outcome))

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def join(self) -> list[Any]:
        """What each of them returned or raised."""
        end = time.monotonic() + NEVER
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
        assert not [thread for thread in self.threads if thread.is_alive()], "a caller was not woken"
        return [outcome for _, outcome in self.ended]

    def labels(self) -> list[Any]:
        self.join()
        return [label for label, _ in self.ended]


def in_line(limiter: Any, number: int, key: Any = None) -> None:
    """Wait until so many stand in line for a key."""
    eventually(lambda: limiter.peek(key).waiting == number, f"{number} in line")
