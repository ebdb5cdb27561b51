"""Structured fields (RFC 9651), as far as rate limits need them: lists of items with parameters, and dictionaries.

A field that is malformed anywhere is None as a whole, as the RFC has it. Values are str, float, bytes or bool.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

Value = str | float | bytes | bool

MAX_FIELD: Final = 8192
"""Characters of a field that are read."""

_STRING: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,3})?(?![0-9.])")
_TOKEN: Final = re.compile(r"[A-Za-z*][A-Za-z0-9!#$%&'*+\-.^_`|~:/]*")
_BYTES: Final = re.compile(r":([A-Za-z0-9+/=]*):")
_BOOL: Final = re.compile(r"\?([01])")
_KEY: Final = re.compile(r"[a-z*][a-z0-9_\-.*]*")
_SPACES: Final = re.compile(r" *")
_GAP: Final = re.compile(r"[ \t]*")


class Item(NamedTuple):
    """A value and its parameters."""

    value: Value
    parameters: dict[str, Value]


class _Malformed(ValueError):
    pass


def read_list(text: str) -> list[Item] | None:
    """The items of a list.

    >>> read_list('"burst";r=50;t=30, "day";r=1')
    [Item(value='burst', parameters={'r': 50.0, 't': 30.0}), Item(value='day', parameters={'r': 1.0})]
    >>> read_list('"burst";r=') is None
    True
    """
    return [item for _, item in members] if (members := _members(text, named=False)) is not None else None


def read_dictionary(text: str) -> dict[str, Item] | None:
    """The members of a dictionary.

    >>> read_dictionary("limit=100, remaining=50")["limit"].value
    100.0
    """
    return dict(members) if (members := _members(text, named=True)) is not None else None


def _members(text: str, *, named: bool) -> list[tuple[str, Item]] | None:
    if len(text) > MAX_FIELD or not text.isascii():
        return None
    found: list[tuple[str, Item]] = []
    text = text.strip(" ")
    at = 0
    try:
        while at < len(text):
            key = ""
            if named:
                key, at = _take(_KEY, text, at)
            if named and text[at : at + 1] != "=":
                value: Value = True
            else:
                value, at = _value(text, at + named)
            parameters, at = _parameters(text, at)
            found.append((key, Item(value, parameters)))
            at = _skip(_GAP, text, at)
            if at == len(text):
                break
            if text[at] != ",":
                return None
            at = _skip(_GAP, text, at + 1)
            if at == len(text):
                return None
    except _Malformed:
        return None
    return found


def _parameters(text: str, at: int) -> tuple[dict[str, Value], int]:
    found: dict[str, Value] = {}
    while text[at : at + 1] == ";":
        key, at = _take(_KEY, text, _skip(_SPACES, text, at + 1))
        if text[at : at + 1] == "=":
            found[key], at = _value(text, at + 1)
        else:
            found[key] = True
    return found, at


def _value(text: str, at: int) -> tuple[Value, int]:
    if match := _STRING.match(text, at):
        return re.sub(r"\\(.)", r"\1", match[1]), match.end()
    if match := _NUMBER.match(text, at):
        return float(match[0]), match.end()
    if match := _TOKEN.match(text, at):
        return match[0], match.end()
    if match := _BYTES.match(text, at):
        return match[1].encode(), match.end()
    if match := _BOOL.match(text, at):
        return match[1] == "1", match.end()
    raise _Malformed


def _take(pattern: re.Pattern[str], text: str, at: int) -> tuple[str, int]:
    if match := pattern.match(text, at):
        return match[0], match.end()
    raise _Malformed


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
