"""The figures of limiters, once for all ways to show them: what they are called, and what they mean.

Prometheus writes `headway_granted_total`, OpenTelemetry `headway.granted`, which its exporter for Prometheus writes in
the same way. All have the label `limit`, the name of the limiter. None has the key by default: a client that invents
keys must not make figures.

granted      permits that were granted
denied       requests that got none
completed    permits whose call has ended, whatever it cost
cancelled    permits that went back unused
abandoned    permits whose outcome is not known
waiting      requests that wait now
keys         keys that are remembered
events       what `on_event` was told, by kind
wait         seconds that requests waited which had to
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headway.errors import InvalidArgument

if TYPE_CHECKING:
    from headway import Limiter

Labels = Mapping[str, Any]
"""Values, or functions of what is shown (a limiter, an event), by the name of the label."""


class Metric(NamedTuple):
    """One figure of `stats()`."""

    name: str
    meaning: str
    counts: bool = True
    """Whether it only grows."""


GRANTED: Final = Metric("granted", "permits that were granted")
DENIED: Final = Metric("denied", "requests that got none")
WAITING: Final = Metric("waiting", "requests that wait now", counts=False)
KEYS: Final = Metric("keys", "keys that are remembered", counts=False)
STATS: Final = (
    GRANTED,
    DENIED,
    Metric("completed", "permits whose call has ended, whatever it cost"),
    Metric("cancelled", "permits that went back unused"),
    Metric("abandoned", "permits whose outcome is not known"),
    WAITING,
    KEYS,
)
EVENTS: Final = Metric("events", "what on_event was told, by kind")
WAIT: Final = Metric("wait", "seconds that requests waited which had to")

LIMIT: Final = "limit"
KIND: Final = "kind"
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


def check_labels(labels: Labels) -> None:
    """Refuse labels that have a meaning here."""
    for name in labels:
        if name == "" or str(name) != name or name.startswith("__"):
            raise InvalidArgument("labels", name, 'names such as "team", which begin with no "__"')
        if name in (LIMIT, KIND):
            raise InvalidArgument("labels", name, f"other names than {LIMIT!r} and {KIND!r}, which are taken")


def values_of(labels: Labels, shown: Any) -> dict[str, str]:
    """The labels of a limiter or an event, as texts."""
    return {name: str(value(shown) if callable(value) else value) for name, value in labels.items()}


def totals(limiters: Iterable[Limiter], labels: Labels, metric: Metric) -> list[tuple[dict[str, str], float]]:
    """A figure by labels; limiters with the same labels are one.

    In memory, limiters of one name share their store, and each of them tells what the store has counted: that is read
    once.
    """
    found: dict[tuple[tuple[str, str], ...], float] = {}
    for limiter in {id(limiter._store or limiter): limiter for limiter in limiters}.values():
        own = {LIMIT: limiter.name or "", **values_of(labels, limiter)}
        place = tuple(own.items())
        found[place] = found.get(place, 0) + getattr(limiter.stats(), metric.name)
    return [(dict(place), number) for place, number in found.items()]
