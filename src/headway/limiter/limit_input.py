"""The limits that a limiter is told to keep, in any of the ways to say them, as one for each metric."""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.limits import AllOf, Limit, Window, as_limit
from headway.core.remote import Remote
from headway.errors import InvalidArgument

Limits = str | Limit | Mapping[str, str | Limit]


def as_remote(remote: Remote | bool | None) -> Remote | None:
    """The remote that is meant, if any; True is one of which nothing is known."""
    if remote is True:
        return Remote()
    if remote is None or remote is False:
        return None
    if not isinstance(remote, Remote):
        raise InvalidArgument("remote", remote, "a Remote, True or None")
    return remote


def limits_of(limit: Limits, remote: Remote | None) -> dict[str, Limit]:
    """Every metric's limit; a limiter without metrics has one, called ""."""
    if not isinstance(limit, Mapping):
        return {"": _with_remote(as_limit(limit), remote)}
    if not limit or not all(type(name) is str and name for name in limit):
        raise InvalidArgument(
            "limit", dict(limit), "a mapping from metric names to limits, with at least one metric"
        )
    return {name: _with_remote(as_limit(part), remote) for name, part in limit.items()}


def _with_remote(limit: Limit, remote: Remote | None) -> Limit:
    """The same limit, with every `Window` that names no remote of its own facing this one."""
    if remote is None:
        return limit
    if isinstance(limit, AllOf):
        return AllOf(*(_with_remote(part, remote) for part in limit.limits))
    if isinstance(limit, Window) and limit.remote is None:
        return Window(limit.count, per=f"{limit.per_ns}ns", remote=remote)
    return limit
