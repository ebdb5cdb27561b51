"""The path of one decision on Redis: every Python function of headway from `limiter.acquire()` to the bytes and back.

    python -m bench.path                        # on a server of its own
    python -m bench.path redis://localhost      # on this one

A proxy for how long it takes to read that path, and no measure of time: functions of C and of other packages do not
count. The call is granted at once, warm, without a key, in one thread, and in the interpreted form.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

MOST = 26
"""Calls of one warm `acquire()`."""


class Call(NamedTuple):
    """A function that was called, how deep below `acquire`, and where it is written."""

    depth: int
    name: str
    place: str

    def __str__(self) -> str:
        return f"{'  ' * self.depth + self.name:<44}{self.place}"


def calls_of(function: Callable[[], Any], package: str) -> list[Call]:
    """The calls of functions in a package that `function` makes, in their order."""
    found: list[Call] = []
    depth = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        code = frame.f_code
        if not code.co_filename.startswith(package):
            return
        if event == "call":
            place = f"{os.path.relpath(code.co_filename, package)}:{code.co_firstlineno}"
            found.append(Call(depth, code.co_qualname, place))
            depth += 1
        elif event == "return":
            depth -= 1

    sys.setprofile(note)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    del result  # freed outside of what is counted
    return found


def decision_path(url: str) -> list[Call]:
    """The calls of one warm `acquire()` on the server at `url`."""
    import headway

    limiter = headway.Limiter("1000000/s burst 10000", name="path", engine=url)
    try:
        for _ in range(3):
            limiter.acquire()
        return calls_of(limiter.acquire, str(Path(headway.__file__).parent))
    finally:
        limiter.close()


def main(url: str | None = None) -> int:
    """Print the path; 1 if it is too long."""
    os.environ["HEADWAY_PURE"] = "1"  # before headway is imported
    if url is None:
        from bench.server import private_server

        with private_server() as own:
            path = decision_path(own)
    else:
        path = decision_path(url)
    for call in path:
        print(call)
    print(f"{len(path)} calls, {MOST} at most")
    return len(path) > MOST


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
