"""The values of a configuration: what each may be, and the message for one that it may not be.

A value is read by a function that returns it, checked and in one form, or raises `Refused` with what is accepted. The
same functions read the tables of a TOML file and the bodies of `PUT /v1/limits/{name}`: the message says where it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.durations import count_of, span_of
from headway.engines.uri import check_engine, public
from headway.errors import HeadwayError, InvalidArgument, InvalidLimit
from headway.limiter.limit_input import limits_of
from headway.limiter.prefetch_options import Prefetch
from headway.once.input import rule_of
from headway.printable import printable

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}", re.ASCII)
A_NAME = "1 to 128 letters, digits and _ . : -, the first a letter, a digit or _"
ROLES = ("read", "use", "admin")
"""From the least to the most: a role may do what those before it may."""
UNLIMITED = "unlimited"

_MISSING = object()


class ConfigError(HeadwayError):
    """A configuration that cannot be. `file`, `table`, `value` and `accepted` are the facts of it.

    >>> print(ConfigError("headway.toml", "limits.api", "lease", "-1", "seconds from 0.1 to 86400"))
    headway.toml: [limits.api] lease = -1 is not accepted; give seconds from 0.1 to 86400
    """

    def __init__(self, file: str, table: str, key: str, value: str, accepted: str, problem: str = "") -> None:
        self.file = file
        self.table = table
        self.key = key
        self.value = value
        self.accepted = accepted
        self.problem = problem
        place = " ".join(filter(None, (f"[{table}]" if table else "", key)))
        shown = f" = {value}" if value and key else value
        why = problem or "is not accepted"
        start = ": ".join(filter(None, (file, f"{place}{shown}".strip())))
        super().__init__(f"{start} {why}" + (f"; give {accepted}" if accepted else ""))


class Refused(Exception):
    """A value is not accepted; `problem` says why, where that is not clear from what is."""

    def __init__(self, accepted: str, problem: str = "") -> None:
        super().__init__(accepted)
        self.accepted = accepted
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a table: how it is read, what it is without one, and whether its value may be shown."""

    read: Callable[[Any], Any]
    default: Any = _MISSING
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where values are read: a file and a table of it."""

    file: str
    table: str

    def error(
        self, key: str, value: Any, accepted: str, problem: str = "", *, secret: bool = False
    ) -> ConfigError:
        shown = "..." if secret else _shown(value)
        return ConfigError(self.file, printable(self.table), printable(key), shown, accepted, problem)

    def misplaced(self, key: str, accepted: str, problem: str) -> ConfigError:
        """For what is not expected there. Its value is not shown: under a mistyped name it may be a secret."""
        return ConfigError(self.file, printable(self.table), printable(key), "", accepted, problem)

    def read(self, table: Any, fields: Mapping[str, Field]) -> dict[str, Any]:
        """The values of a table: those that are there and the defaults of the others. Unknown keys are refused."""
        if not isinstance(table, Mapping):
            raise self.misplaced("", "a table", "is no table")
        for key in table:
            if key not in fields:
                raise self.misplaced(str(key), f"only {', '.join(fields)}", "is not known here")
        found: dict[str, Any] = {}
        for key, field in fields.items():
            if key not in table:
                if field.default is not _MISSING:
                    found[key] = field.default
                continue
            try:
                found[key] = field.read(table[key])
            except Refused as refused:
                raise self.error(
                    key, table[key], refused.accepted, refused.problem, secret=field.secret
                ) from None
            except InvalidArgument as error:
                raise self.error(key, table[key], f"{error.accepted} as {error.argument}") from None
            except InvalidLimit as error:
                raise self.error(key, table[key], error.accepted or "a limit", _why(error)) from None
        return found


def _shown(value: Any) -> str:
    text = repr(value)
    return printable(text if len(text) <= 200 else f"{text[:200]}...")


def _why(error: InvalidLimit) -> str:
    where = "" if error.position is None else f" at position {error.position}"
    return f"cannot be read{where}: {error.problem or 'it is not accepted'}"


# -- readers ---------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Refused("a string that is not empty")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Refused("true or false")
    return value


def one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise Refused(" or ".join(map(repr, words)))
        return str(value)

    return read


def number(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        found = count_of(value)
        if found is None or not least <= found <= most:
            raise Refused(f"an integer from {least} to {most}")
        return found

    return read


def seconds(least: float, most: float) -> Callable[[Any], float]:
    """A number of seconds, or a duration such as "250ms"."""

    def read(value: Any) -> float:
        ns = span_of(value)
        # Integers: a float of nanoseconds may be too large to be one of seconds.
        if ns is None or not round(least * 1e9) <= ns <= round(most * 1e9):
            raise Refused(f'seconds from {least:g} to {most:g}, or a duration such as "250ms"')
        return ns / 1e9

    return read


def share(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= 1:
        raise Refused("a share of the limit, above 0 and up to 1")
    return float(value)


def engine(value: Any) -> str:
    if not isinstance(value, str):
        raise Refused('the URI of an engine, such as "redis://db:6379/0"')
    if value == "embedded://":
        return value
    try:
        check_engine(value)
    except InvalidArgument as error:
        raise Refused(error.accepted, f"names no engine ({public(value)})") from None
    return value


def limit(value: Any) -> str | dict[str, str]:
    """A limit, or one for each metric; as text, since that is what is compared and shown."""
    if isinstance(value, str):
        limits_of(value, None)
        return value
    if not isinstance(value, Mapping) or not value:
        raise Refused('a limit such as "100/s; 5 concurrent", or a table of metrics with a limit for each')
    for metric, part in value.items():
        if not isinstance(part, str) or NAME.fullmatch(metric) is None:
            raise Refused(f"a limit as a string for each metric; a metric is {A_NAME}")
    limits_of(value, None)
    return dict(value)


def overrides(value: Any) -> dict[str, str | dict[str, str] | None]:
    """Limits of single keys; None for a key that is exempt."""
    if not isinstance(value, Mapping):
        raise Refused(f'a table of keys, with a limit or "{UNLIMITED}" for each')
    return {key: None if own == UNLIMITED else limit(own) for key, own in value.items()}


def _ppm(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1_000_000:
        raise Refused("parts per million, from 0 to below 1000000")
    return float(value)


REMOTE = {
    "resolution": Field(seconds(0, 86400)),
    "drift_ppm": Field(_ppm),
    "out_latency": Field(seconds(0, 86400)),
    "back_latency": Field(seconds(0, 86400)),
    "max_transit": Field(seconds(0, 86400)),
}
PREFETCH = {
    "predict_window": Field(seconds(0.3, 3600)),
    "min_tokens": Field(number(1, 1 << 40)),
    "ttl": Field(seconds(0.3, 3600)),
}


def options(fields: Mapping[str, Field]) -> Callable[[Any], bool | dict[str, float]]:
    """True, False, or a table of these."""

    def read(value: Any) -> bool | dict[str, float]:
        if isinstance(value, bool):
            return value
        accepted = f"true, false, or a table with {', '.join(fields)}"
        if not isinstance(value, Mapping):
            raise Refused(accepted)
        try:
            return Place("", "").read(value, fields)
        except ConfigError as error:
            raise Refused(f"{error.accepted} as {error.key}" if error.accepted else accepted) from None

    return read


def prefetch(value: Any) -> bool | dict[str, float]:
    found = options(PREFETCH)(value)
    if isinstance(found, dict):
        Prefetch(**found)  # type: ignore[arg-type]
    return found


def gate_duration(value: Any) -> float:
    return rule_of(value, "only", 1, 1).duration / 1e9


def paths(value: Any) -> tuple[str, ...]:
    """One path, or several."""
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not found or not all(isinstance(p, str) and p for p in found):
        raise Refused("a path, or a list of paths")
    return tuple(found)
