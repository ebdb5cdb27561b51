"""What a limit is: values, and nothing that happens.

A limit only says what is allowed. It holds no clock and no count, so it can be shared, compared, hashed,
sent to another process and used as a key. A limit that makes no sense cannot be built: the checks are here
and nowhere else, and the algorithms may rely on integers that fit 63 bits. `repr()` gives Python. `str()` gives the
notation, which `parse_limit` reads back; what the notation cannot say (options of a `Spacing`) it gives as Python. The
remote of a `Window` is no part of the notation: `str()` leaves it out, `repr()` has it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import gcd
from typing import ClassVar, Literal

from headway.core.calendar import is_zone, near_zone, window_of
from headway.core.durations import (
    DAY,
    MAX,
    MONTH,
    Duration,
    Scanner,
    count_of,
    duration_text,
    seconds_source,
    to_ns,
)
from headway.core.remote import Remote, gap_ns
from headway.errors import InvalidLimit

__all__ = ["AllOf", "Bucket", "Concurrency", "FixedWindow", "Limit", "Spacing", "Window", "as_limit"]


def _count(name: str, value: object, least: int = 0) -> int:
    count = count_of(value)
    if count is None or not least <= count <= MAX:
        raise InvalidLimit(f"{name}={value!r}", None, f"an integer from {least} to 2**62")
    return count


def _span(name: str, value: object, least: int = 1) -> int:
    ns = to_ns(value)
    if ns is None or not least <= ns <= MAX:
        kinds = 'seconds, a timedelta, or a string such as "minute" or "250ms"'
        raise InvalidLimit(f"{name}={value!r}", None, f"{kinds}, from {least} ns to 2**62 ns (146 years)")
    return ns


def _part(count: int, part: float) -> int:
    return max(1, int(count * part)) if count else 0


class Limit(ABC):
    """The root of all limits.

    >>> isinstance(Window(100, per=60), Limit)
    True
    """

    __slots__ = ()
    kind: ClassVar[str]

    @property
    @abstractmethod
    def capacity(self) -> int:
        """The largest cost that can ever be granted at once."""

    @abstractmethod
    def share(self, part: float) -> Limit:
        """So much of it, rounded down but never to nothing: for a process that has to do without the others.

        >>> Window(100, per=60).share(0.25), Bucket("10/s", burst=3).share(0.5), Spacing(6).share(0.1)
        (Window(25, per=60), Bucket('5/s', burst=1), Spacing(60))
        """

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Window(Limit):
    """Never more than `count` in any window of `per`, wherever it starts. All of them may go at once.

    `remote` says when a permit counts. None, the default: whatever brackets a call (`with`, `hold`, `throttle`) counts
    as the remote does, until the call is over and for the gap of `Remote()` after it; a bare `acquire` counts at the
    decision. False: always at the decision, for a limit of one's own. True or a `Remote`: always until its end.

    >>> Window(100, per=60), str(Window(100, per="minute")), Window(100, per=60).per_ns
    (Window(100, per=60), '100/minute', 60000000000)
    >>> Window(100, per=60, remote=False), Window(100, per=60, remote=True)
    (Window(100, per=60, remote=False), Window(100, per=60, remote=Remote()))
    """

    kind: ClassVar[str] = "window"
    count: int
    per_ns: int
    remote: Remote | Literal[False] | None

    def __init__(self, count: int, *, per: Duration, remote: Remote | bool | None = None) -> None:
        if remote is True:
            remote = Remote()
        self._set(count=_count("count", count), per_ns=_span("per", per), remote=remote)
        if remote is None or remote is False:
            return
        if not isinstance(remote, Remote):
            raise InvalidLimit(f"remote={remote!r}", None, "a Remote, True, False or None")
        if gap_ns(self.per_ns, remote, 0, 0) > MAX:
            raise InvalidLimit(repr(self), None, "a smaller drift_ppm", "the gap exceeds 2**62 ns")

    @property
    def capacity(self) -> int:
        return self.count

    def share(self, part: float) -> Limit:
        return Window(_part(self.count, part), per=f"{self.per_ns}ns", remote=self.remote)

    def __str__(self) -> str:
        return f"{self.count}/{duration_text(self.per_ns)}"

    def __repr__(self) -> str:
        remote = "" if self.remote is None else f", remote={self.remote!r}"
        return f"Window({self.count}, per={seconds_source(self.per_ns)}{remote})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Bucket(Limit):
    """A steady rate, with up to `burst` at once after a rest: any time d admits at most `burst + rate * d`.

    >>> Bucket("100/s", burst=20) == Bucket((100, 1), burst=20), Bucket("90/minute").rate
    (True, 1.5)
    """

    kind: ClassVar[str] = "bucket"
    count: int
    per_ns: int
    burst: int

    def __init__(self, rate: str | tuple[int, Duration], *, burst: int = 1) -> None:
        pair: object = rate
        if isinstance(rate, str):
            scan = Scanner(rate, "rate")
            count, per_ns = scan.rate()
            if scan.peek():
                scan.fail("nothing more after the rate; the burst is an argument of its own")
        elif isinstance(pair, tuple) and len(pair) == 2:
            count, per_ns = _count("count", pair[0]), _span("per", pair[1])
        else:
            raise InvalidLimit(f"rate={rate!r}", None, 'a string such as "100/s", or (count, per)')
        self._set(count=count, per_ns=per_ns, burst=_count("burst", burst, 1))
        self._check_arithmetic()

    def _check_arithmetic(self) -> None:
        # The ledger counts in ns and `count`-ths of one; a full burst must fit 63 bits in both.
        if not self.count:
            return
        common = gcd(self.count, self.per_ns)
        count, per_ns = self.count // common, self.per_ns // common
        if self.burst * (per_ns // count + 1) > MAX:
            problem = f"earning {self.burst} permits at this rate takes more than 2**62 ns (146 years)"
            raise InvalidLimit(repr(self), None, "a smaller burst or a higher rate", problem)
        if self.burst * count > MAX:
            problem = "burst times count exceeds 2**62, so the rate cannot be kept exactly"
            raise InvalidLimit(repr(self), None, "a smaller burst, or a rounder count per second", problem)

    @property
    def rate(self) -> float:
        """Permits per second."""
        return self.count * 10**9 / self.per_ns

    @property
    def capacity(self) -> int:
        return self.burst if self.count else 0

    def share(self, part: float) -> Limit:
        count, per_ns = self.count, self.per_ns
        if _part(count, part) < count * part * 0.9:
            per_ns = int(per_ns / part)  # of so few, the same number in a longer time is nearer
        else:
            count = _part(count, part)
        return Bucket((count, f"{per_ns}ns"), burst=_part(self.burst, part))

    def __str__(self) -> str:
        return f"{self.count}/{duration_text(self.per_ns)} burst {self.burst}"

    def __repr__(self) -> str:
        return f"Bucket('{self.count}/{duration_text(self.per_ns)}', burst={self.burst})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Spacing(Limit):
    """One every `interval`, never saved up; up to `max_reserved` slots can be reserved ahead.

    >>> Spacing(6), str(Spacing(6)), Spacing(6).interval_ns
    (Spacing(6), '1 every 6s', 6000000000)
    """

    kind: ClassVar[str] = "spacing"
    interval_ns: int
    max_reserved: int
    expire_after_ns: int | None
    strict: bool

    def __init__(
        self,
        interval: Duration,
        *,
        max_reserved: int = 100,
        expire_after: Duration | None = None,
        strict: bool = True,
    ) -> None:
        if not isinstance(strict, bool):
            raise InvalidLimit(f"strict={strict!r}", None, "True or False")
        self._set(
            interval_ns=_span("interval", interval),
            max_reserved=_count("max_reserved", max_reserved),
            expire_after_ns=None if expire_after is None else _span("expire_after", expire_after, 0),
            strict=strict,
        )
        if (self.interval_ns + (self.expire_after_ns or 0)) * (self.max_reserved + 1) > MAX:
            problem = "the last slot would be more than 2**62 ns (146 years) ahead"
            raise InvalidLimit(repr(self), None, "a smaller max_reserved", problem)

    @property
    def capacity(self) -> int:
        return 1

    def share(self, part: float) -> Limit:
        return Spacing(
            f"{int(self.interval_ns / part)}ns", max_reserved=self.max_reserved, strict=self.strict
        )

    def _options(self) -> str:
        options = "" if self.max_reserved == 100 else f", max_reserved={self.max_reserved}"
        if self.expire_after_ns is not None:
            options += f", expire_after={seconds_source(self.expire_after_ns)}"
        return options if self.strict else f"{options}, strict=False"

    def __str__(self) -> str:
        return repr(self) if self._options() else f"1 every {duration_text(self.interval_ns)}"

    def __repr__(self) -> str:
        return f"Spacing({seconds_source(self.interval_ns)}{self._options()})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class FixedWindow(Limit):
    """At most `count` per period of the calendar: "day", "week" (from Monday), "month", "3h", or seconds.

    Across a boundary twice the count can pass in a short time; where that matters, use `Window`. For a month
    `monthly` is True and `per_ns` is 31 days.

    >>> FixedWindow(10000, per="day"), str(FixedWindow(5, per="month", tz="UTC"))
    (FixedWindow(10000, per='day'), '5/month aligned')
    >>> FixedWindow(5, per="day").window_of(86_400_000_000_000 + 1)
    (86400000000000, 172800000000000)
    """

    kind: ClassVar[str] = "fixed_window"
    count: int
    per_ns: int
    monthly: bool
    tz: str

    def __init__(self, count: int, *, per: Duration, tz: str = "UTC") -> None:
        monthly = False
        if isinstance(per, str):
            scan = Scanner(per, "duration")
            monthly = scan.duration() == MONTH and not scan.peek()
        per_ns = 31 * DAY if monthly else _span("per", per)
        self._set(count=_count("count", count), per_ns=per_ns, monthly=monthly, tz=tz)
        if not is_zone(tz):
            hint = near_zone(tz)
            accepted = (
                "an IANA name such as Europe/Berlin; where the system has no time zones: pip install tzdata"
            )
            raise InvalidLimit(f"tz={tz!r}", None, accepted, f"unknown time zone{hint}")

    def window_of(self, wall_ns: int) -> tuple[int, int]:
        """Start and end, in ns since the Unix epoch, of the window that contains `wall_ns`."""
        return window_of(wall_ns, None if self.monthly else self.per_ns, self.tz)

    @property
    def capacity(self) -> int:
        return self.count

    def share(self, part: float) -> Limit:
        per = "month" if self.monthly else f"{self.per_ns}ns"
        return FixedWindow(_part(self.count, part), per=per, tz=self.tz)

    @property
    def _per(self) -> str:
        return "month" if self.monthly else duration_text(self.per_ns)

    def __str__(self) -> str:
        return f"{self.count}/{self._per} aligned" + (f" {self.tz}" if self.tz != "UTC" else "")

    def __repr__(self) -> str:
        zone = f", tz={self.tz!r}" if self.tz != "UTC" else ""
        return f"FixedWindow({self.count}, per={self._per!r}{zone})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Concurrency(Limit):
    """At most `count` at the same time, each held until it is handed back.

    >>> Concurrency(5), str(Concurrency(5))
    (Concurrency(5), '5 concurrent')
    """

    kind: ClassVar[str] = "concurrency"
    count: int

    def __init__(self, count: int) -> None:
        self._set(count=_count("count", count))

    @property
    def capacity(self) -> int:
        return self.count

    def share(self, part: float) -> Limit:
        return Concurrency(_part(self.count, part))

    def __str__(self) -> str:
        return f"{self.count} concurrent"

    def __repr__(self) -> str:
        return f"Concurrency({self.count})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class AllOf(Limit):
    """All of them, taken atomically: all or none.

    >>> AllOf("10/s", AllOf("5 concurrent"))
    AllOf(Window(10, per=1), Concurrency(5))
    """

    kind: ClassVar[str] = "all_of"
    limits: tuple[Limit, ...]

    def __init__(self, *limits: str | Limit) -> None:
        flat: list[Limit] = []
        for limit in map(as_limit, limits):
            flat.extend(limit.limits if isinstance(limit, AllOf) else (limit,))
        if not flat:
            raise InvalidLimit("AllOf()", None, "at least one limit")
        self._set(limits=tuple(flat))

    @property
    def capacity(self) -> int:
        return min(limit.capacity for limit in self.limits)

    def share(self, part: float) -> Limit:
        return AllOf(*(limit.share(part) for limit in self.limits))

    def __str__(self) -> str:
        # One alone would read back as itself, and not as an AllOf.
        texts = [str(limit) for limit in self.limits]
        return "; ".join(texts) if len(texts) > 1 and not any("(" in text for text in texts) else repr(self)

    def __repr__(self) -> str:
        return f"AllOf({', '.join(map(repr, self.limits))})"


def as_limit(value: str | Limit) -> Limit:
    """The limit itself, or the one that a string describes.

    >>> as_limit("100/minute")
    Window(100, per=60)
    """
    if isinstance(value, Limit):
        return value
    from headway.core.notation import (
        parse_limit,  # notation builds limits, so it cannot be imported before them
    )

    return parse_limit(value)
