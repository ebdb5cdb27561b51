"""Commands to the scripts and their replies, as bytes: packed numbers, nothing to be parsed.

Times are *ticks* of a microsecond, which is what Redis' TIME counts; since 1970 they stay whole numbers in a double
until the year 2255. The layout is documented at the top of `script/lua/header.lua`.
"""

from __future__ import annotations

import sys
from struct import Struct, pack, unpack
from typing import TYPE_CHECKING
from zlib import crc32

from headway.core.bucket import BucketRule
from headway.core.concurrency import ConcurrencyRule
from headway.core.fixed_window import FixedWindowRule
from headway.core.spacing import SpacingRule
from headway.core.window import WindowRule
from headway.engines.redis.script.scripts import BUCKET, CONCURRENCY, FIXED_WINDOW, SPACING, WINDOW

if TYPE_CHECKING:
    from headway.core.ledger import Rule

TICK = 1000
"""Nanoseconds."""
NEVER = float(1 << 52)
"""Longer than any wait: where there is no deadline."""

OK, STALE, LOST, MOVED, CLOCK, MISMATCH, RECONFIGURE, EDGES, VERSION, SKIPPED, LEASED = range(11)
ACQUIRE, RELEASE, WITHDRAW, POLL, RENEW, PEEK, PAUSE, RESET, QUARANTINE, TRUST, ECHO, SYNC = range(1, 13)
NOW, WAIT, RESERVE = range(3)
"""Modes of ACQUIRE. In a pause of the whole limiter a key's ledger promises a time only to RESERVE."""
HELD = 4
"""Added to the mode where the permit brackets a call: its end will be sent."""
DENIED, GRANTED, STANDING, REFUSED, SEVERAL = 0, 1, 2, 3, 4
"""Replies to ACQUIRE. SEVERAL: so many of the equal requests are granted now; their tally, then the mark of each."""

if sys.byteorder != "little":
    raise ImportError("headway's engines on Redis need a little-endian machine")

HEADER = Struct("<9d")
HEAD = Struct("<8d24s")
RECORD = Struct("<9d")
META = Struct("<10d24s")


def kind_of(rule: Rule) -> int:
    """The number by which the scripts know its kind."""
    match rule:
        case BucketRule():
            return BUCKET
        case WindowRule():
            return WINDOW
        case SpacingRule():
            return SPACING
        case FixedWindowRule():
            return FIXED_WINDOW
        case ConcurrencyRule():
            return CONCURRENCY
    raise TypeError(f"no script keeps {rule!r}")


def record_of(rule: Rule, key: int, now: int = 0) -> bytes:
    """A rule as the scripts read it; `key` says which of the KEYS its ledger is in, `now` (ticks) in which period of
    the calendar we are."""
    kind = kind_of(rule)
    own: tuple[int, ...]
    match rule:
        case BucketRule():
            own = (rule.whole, rule.part, rule.parts, rule.room, rule.room_part)
        case WindowRule():
            own = rule.numbers()
        case SpacingRule():
            own = (rule.interval, rule.step, rule.max_reserved)
        case FixedWindowRule():
            start, end = rule.window_of(now)
            own = (crc32(str(rule.limit).partition("/")[2].encode()), start, end, rule.window_of(end)[1])
        case ConcurrencyRule():
            own = (rule.lease,)
        case _:
            raise TypeError(f"no script keeps {rule!r}")
    return RECORD.pack(kind, key, rule.capacity, *own, *(0,) * (6 - len(own)))


def numbers(*values: float) -> bytes:
    """A command."""
    return pack(f"<{len(values)}d", *values)


def read_numbers(data: bytes, offset: int = 0) -> tuple[float, ...]:
    return unpack(f"<{(len(data) - offset) // 8}d", data[offset:])


def framed(*parts: bytes) -> bytes:
    """Bytes as arguments of the Redis protocol."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


def command(*parts: bytes) -> bytes:
    """Bytes as a command of the Redis protocol.

    >>> command(b"GET", b"k")
    b'*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\nk\\r\\n'
    """
    return b"*%d\r\n%b" % (len(parts), framed(*parts))


def no_script(reply: object) -> bool:
    """Whether the server has forgotten the script, or never knew it; redis-py makes a class of its own of that."""
    return type(reply).__name__ == "NoScriptError" or str(reply).startswith("NOSCRIPT")
