"""The Lua that decides on the server, put together from one file per kind of limit.

A script runs from its first line with every call, so a part that is not needed still costs. A limiter's script
therefore has only the kinds of its limits, a queue only where callers may have to wait in one, and leases only where
clients hold tokens; then there always is a queue. All limiters of the same kinds share a script. The server knows
scripts by their SHA-1 and forgets them when it restarts; then they are loaded again.
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
LENDABLE = frozenset({BUCKET, WINDOW, FIXED_WINDOW, CONCURRENCY})
"""The kinds whose tokens clients can hold."""


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
def ledger_script(kinds: frozenset[int], queue: bool, leases: bool = False) -> Script:
    """The script for limiters of these kinds; one with `leases` also has a queue.

    >>> ledger_script(frozenset({BUCKET}), False).sha == ledger_script(frozenset({WINDOW}), True).sha
    False
    """
    names = ["prelude"]
    if kinds & _WITH_RUNS:
        names.append("runs")
    names += [_FILES[kind] for kind in sorted(kinds)]
    if leases:
        names += ["lend", *(f"lend_{_FILES[kind]}" for kind in sorted(kinds & LENDABLE))]
    names += ["header", "fast_path", "open_ledgers", "decide", "queue" if queue or leases else "no_queue"]
    names += ["shares", "lease", "lend_commands"] if leases else ["no_lease"]
    names += ["commands", "commit"]
    able = f"local can_queue, can_lend = {str(queue or leases).lower()}, {str(leases).lower()}\n"
    return _script(able + "\n".join(map(part, names)))


@cache
def plain_script(name: str) -> Script:
    """A script that is one file: "dump" or "reconfigure"."""
    return _script(part(name))
