"""Run as a script: functions of `__main__`, sent to another process as joblib and loky send them."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import subprocess
import sys
from typing import Any

import cloudpickle

from headway import Limiter, throttle

FACTOR = 2


def decorated(**options: Any) -> Any:
    return throttle("3/hour", timeout=0, **options)


@decorated()
def double(number: int) -> int:
    """Twice as much."""
    return FACTOR * number


double.note = "kept"


@decorated()
async def double_later(number: int) -> int:
    return FACTOR * number


@decorated(key=lambda to: "a key")
def count(to: int) -> Any:
    yield from range(FACTOR * to)


class Client:
    @decorated()
    def add(self, number: int) -> int:
        return FACTOR + number


CHILD = """
import asyncio, pickle, sys
from headway import AcquireTimeout
blobs = pickle.load(sys.stdin.buffer)
double, later, count, client = map(pickle.loads, blobs)
assert (double(4), double.__name__, double.__doc__, double.note) == (8, "double", "Twice as much.", "kept")
assert asyncio.run(later(4)) == 8
assert list(count(2)) == [0, 1, 2, 3]
assert client.add(1) == 3
# The next task unpickles the function again, and finds the limiter that this process has for it.
again = pickle.loads(blobs[0])
assert again.limiter is double.limiter and again.limiter.peek().remaining == 2
again(1), pickle.loads(blobs[0])(1)
try:
    pickle.loads(blobs[0])(1)
except AcquireTimeout:
    print("limited")
assert pickle.loads(blobs[1]).limiter is later.limiter
"""


def main() -> None:
    blobs = [cloudpickle.dumps(thing) for thing in (double, double_later, count, Client())]
    assert cloudpickle.loads(blobs[0]).limiter is double.limiter, "here it is the limiter that is here"
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=cloudpickle.dumps(blobs), capture_output=True, check=False
    )
    sys.stderr.buffer.write(done.stderr)
    print(done.stdout.decode(), end="")  # noqa: T201
    shared = Limiter("5/s")
    try:
        cloudpickle.dumps(throttle(shared)(lambda: 1))
    except TypeError as error:
        print(error)  # noqa: T201
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
