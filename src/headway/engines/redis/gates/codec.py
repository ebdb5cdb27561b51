"""A gate's commands and answers as bytes: packed numbers, and texts with their lengths (see `script/lua/once.lua`).

Nearly all of a command is the same each time, so it is put together as bytes and not packed argument by argument.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.core.once import Change, EventStatus, Pending, Submission
from headway.engines.redis.script.protocol import TICK
from headway.errors import GateFull, IdReused

if TYPE_CHECKING:
    from headway.core.once import OnceRule

OK, OTHER, GONE, LOST, AGAIN = range(5)
"""How an answer begins, as in `script/lua/once.lua`."""
REUSED, FULL = 4, 5
"""What became of a submission that is refused."""

_HEAD = Struct("<5d")
_OK = bytes(8)
_said = Struct("<BddI").unpack_from
_LINE = Struct("<ddB3I")
_PENDING = Struct("<dd3I")
_lengths = Struct("<3I").pack
_STATUSES = tuple(EventStatus)
_new: Any = tuple.__new__
"""Makes a named tuple in half the time."""


class Head(NamedTuple):
    """The numbers in front of every answer; times are ticks of the server's clock, `due` is 0 if nothing is pending."""

    status: int
    now: int
    clock: int
    began: int
    due: int

    @classmethod
    def read(cls, data: bytes) -> Head:
        return cls(*map(int, _HEAD.unpack_from(data)))


def is_ok(data: bytes) -> bool:
    """Whether an answer begins with OK."""
    return data.startswith(_OK)


# -- submissions ---------------------------------------------------------------------------------------------------


def body_of(event: str, id: str, value: str | None) -> bytes:
    """What is sent and kept of an event. A value that is there has a sign in front."""
    text, own = event.encode(), id.encode()
    if value is None:
        return _lengths(len(own), len(text), 0) + own + text
    carried = b"=" + value.encode()
    return _lengths(len(own), len(text), len(carried)) + own + text + carried


def read_said(
    data: bytes, at: int, rule: OnceRule, event: str, id: str
) -> tuple[Submission | Exception, int]:
    """What is said of one submission, from there on, and where that ends."""
    outcome, clock, due, length = _said(data, at)
    at += 21
    if outcome == 1:
        return _new(Submission, (True, id, int(clock), int(due) * TICK, None)), at
    end = at + length
    if outcome == EventStatus.REJECTED:
        return Submission(False, id, int(clock), 0, data[at + 1 : end].decode()), end
    if outcome == REUSED:
        return IdReused(id, data[at + 1 : end].decode(), event), end
    return GateFull(rule.max_pending, due / 1e6), end


# -- texts ---------------------------------------------------------------------------------------------------------


def _texts(data: bytes, at: int, one: int, two: int, three: int) -> tuple[str, str, str | None]:
    """An id, an event, and a value or None."""
    middle = at + one
    end = middle + two
    value = data[end + 1 : end + three].decode() if three else None
    return data[at:middle].decode(), data[middle:end].decode(), value


def _read_line(data: bytes, at: int) -> tuple[Change, int]:
    clock, time, status, one, two, three = _LINE.unpack_from(data, at)
    at += 29
    id, event, value = _texts(data, at, one, two, three)
    change = Change(int(clock), _STATUSES[status], id, event, value, int(time) * TICK)
    return change, at + one + two + three


def read_line(line: bytes) -> Change:
    """A line of the log."""
    return _read_line(line, 0)[0]


def read_pending(packed: bytes, duration: int) -> Pending:
    """A pending event of a gate with this duration."""
    time, clock, one, two, three = _PENDING.unpack_from(packed)
    ns = int(time) * TICK
    return Pending(*_texts(packed, 28, one, two, three), ns, ns + duration, int(clock))


def read_news(data: bytes) -> tuple[Head, list[Change]]:
    """A message of the gate's channel: the numbers, and the lines that are new, unless they are too many."""
    lines, at = [], 40
    while at < len(data):
        line, at = _read_line(data, at)
        lines.append(line)
    return Head.read(data), lines
