"""The Lua that decides on the server, put together from one file per kind of limit.

A script runs from its first line with every call, so a part that is not needed still costs. A limiter's script
therefore has only the kinds of its limits, and a queue only where callers may have to wait in one. All limiters of
the same kinds share a script. The server knows scripts by their SHA-1 and forgets them when it restarts; then they
are loaded again.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

BUCKET, WINDOW, SPACING, FIXED_WINDOW, CONCURRENCY = 1, 2, 3, 4, 5

_FILES = {
    BUCKET: "bucket",
    WINDOW: "window",
    SPACING: "spacing",
    FIXED_WINDOW: "fixed_window",
    CONCURRENCY: "concurrency",
}
_WITH_RUNS = {WINDOW, CONCURRENCY}


class Script(NamedTuple):
    text: bytes
    sha: bytes


@cache
def part(name: str) -> str:
    """The text of one file."""
    return (files("headway.engines.redis.script") / "lua" / f"{name}.lua").read_text()


def _script(text: str) -> Script:
    code = text.encode()
    return Script(code, sha1(code).hexdigest().encode())


@cache
def ledger_script(kinds: frozenset[int], queue: bool) -> Script:
    """The script for limiters of these kinds.

    >>> ledger_script(frozenset({BUCKET}), False).sha == ledger_script(frozenset({WINDOW}), True).sha
    False
    """
    names = ["prelude"]
    if kinds & _WITH_RUNS:
        names.append("runs")
    names += [_FILES[kind] for kind in sorted(kinds)]
    names += [
        "header",
        "fast_path",
        "open_ledgers",
        "decide",
        "queue" if queue else "no_queue",
        "commands",
        "commit",
    ]
    return _script(f"local can_queue = {str(queue).lower()}\n" + "\n".join(map(part, names)))


@cache
def plain_script(name: str) -> Script:
    """A script that is one file: "dump" or "reconfigure"."""
    return _script(part(name))
