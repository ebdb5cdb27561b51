"""What a caller asks for, checked before anything changes: a key and a cost for every rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import EllipsisType
from typing import Any

from headway.core.durations import to_ns
from headway.core.ledger import Rule
from headway.errors import InvalidArgument, InvalidKey

Key = str | Mapping[str, str | None] | None
Cost = int | Mapping[str, int]
Timeout = float | timedelta | EllipsisType | None

MAX_COST = 1 << 62

Names = Sequence[str | None]
"""The metric of every rule; None where the limiter has no metrics."""


def request_of(
    key: Key, cost: Cost, names: Names, rule_for: Callable[[int, str | None], Rule]
) -> tuple[tuple[str | None, ...], tuple[int, ...]]:
    """Key and cost of each rule; raises for what makes no sense."""
    if len(names) == 1 and type(cost) is int and cost == 1 and (key is None or type(key) is str):
        return (key,), (1,)  # the most usual one; 1 is at most what any limit grants, or the limit is 0
    keys = keys_of(key, names)
    costs = costs_of(cost, names)
    for index, (own_key, name, number) in enumerate(zip(keys, names, costs, strict=True)):
        rule = rule_for(index, own_key)
        if number > rule.capacity > 0:
            given = {name: number} if isinstance(cost, Mapping) else number
            raise InvalidArgument(
                "cost", given, f"at most {rule.capacity}, all that '{rule.limit}' can ever grant"
            )
    return keys, costs


def keys_of(key: Any, names: Names, *, costs: bool = True) -> tuple[str | None, ...]:
    """The key of each rule. `costs`: a number may have been meant as the cost."""
    if key is None or type(key) is str:
        return (key,) * len(names)
    if isinstance(key, str):
        return (str.__str__(key),) * len(names)
    if not isinstance(key, Mapping):
        raise InvalidKey(key, costs=costs)
    given = by_metric("key", key, names)
    for value in given.values():
        if value is not None and not isinstance(value, str):
            raise InvalidKey(value, costs=False)
    plain = {name: None if value is None else str.__str__(value) for name, value in given.items()}
    return tuple(plain.get(name) if name is not None else None for name in names)


def costs_of(cost: Any, names: Names) -> tuple[int, ...]:
    """The cost of each rule."""
    if isinstance(cost, Mapping):
        given_costs = by_metric("cost", cost, names)
        costs = tuple(given_costs.get(name, 1) for name in names)
        least = 0
    else:
        if cost != 1 and len(set(names)) > 1:
            raise InvalidArgument(
                "cost", cost, "a mapping from metrics to numbers, as this limiter has several"
            )
        costs = (cost,) * len(names)
        least = 1
    for name, number in zip(names, costs, strict=True):
        if type(number) is not int or not least <= number <= MAX_COST:
            given = {name: number} if isinstance(cost, Mapping) else number
            raise InvalidArgument("cost", given, f"an integer from {least} to 2**62")
    return costs


def by_metric(argument: str, mapping: Mapping[Any, Any], names: Names) -> dict[str | None, Any]:
    """The same as a plain dict; raises for a metric that the limiter does not have.

    Names and keys become plain strings: a subclass of `str` may compare and hash as it likes, and would be found in
    one place and not in another.
    """
    known = sorted({name for name in names if name is not None})
    given: dict[str | None, Any] = {}
    for name, value in mapping.items():
        plain = str.__str__(name) if isinstance(name, str) else name
        if plain not in known:
            accepted = (
                f"only metrics of this limiter: {', '.join(known)}"
                if known
                else "no mapping: it has no metrics"
            )
            raise InvalidArgument(argument, dict(mapping), accepted)
        given[plain] = value
    return given


def settled_cost(cost: int | Mapping[str, int], names: Names) -> dict[int, int]:
    """What each part of a permit cost in the end, by the index of its rule."""
    if isinstance(cost, Mapping):
        given = by_metric("cost", cost, names)
        actual = {
            index: given[name] for index, name in enumerate(names) if name is not None and name in given
        }
    elif names[0] is not None and len(set(names)) > 1:
        raise InvalidArgument("cost", cost, "a mapping from metrics to numbers, as this limiter has several")
    else:
        actual = dict.fromkeys(range(len(names)), cost)
    for index, number in actual.items():
        if type(number) is not int or not 0 <= number < MAX_COST:
            shown = {names[index]: number} if isinstance(cost, Mapping) else number
            raise InvalidArgument("cost", shown, "an integer from 0 up, below 2**62")
    return actual


def timeout_to_ns(timeout: Any) -> int | None:
    """Seconds or a timedelta as nanoseconds; None waits without end.

    >>> timeout_to_ns(0.5), timeout_to_ns(None)
    (500000000, None)
    """
    if timeout is None:
        return None
    ns = None if isinstance(timeout, str) else to_ns(timeout)
    if timeout == float("inf"):
        return None
    if ns is None or ns < 0:
        raise InvalidArgument(
            "timeout", timeout, "seconds from 0 up, a timedelta, or None to wait without end"
        )
    return min(ns, MAX_COST)


def pause_to_ns(length: Any) -> int:
    """The length of a pause in nanoseconds."""
    from headway.core.durations import span_of

    ns = span_of(length)
    if ns is None or not 0 <= ns < 1 << 62:
        raise InvalidArgument("seconds", length, "seconds from 0 up, or a timedelta; 0 lifts the pause")
    return ns
