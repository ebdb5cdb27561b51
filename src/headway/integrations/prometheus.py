"""Figures of limiters for prometheus_client.

    REGISTRY.register(collector(limiter, labels={"team": "payments"}))

shows what `stats()` counts when it is scraped, and costs nothing in between. What only events tell (how long requests
waited, pauses, engine errors) is counted by a listener:

    limiter = Limiter("100/minute", name="partner", on_event=observer())

`labels` are yours: values, or functions of the limiter or of the event. The names are in
`headway.integrations.metric_names`; no figure has the key unless you give it one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headway import InvalidArgument, Limiter, LimiterEvent
from headway.integrations.metric_names import (
    BUCKETS,
    EVENTS,
    KIND,
    LIMIT,
    STATS,
    WAIT,
    Labels,
    check_labels,
    totals,
    values_of,
)

__all__ = ["collector", "observer"]

PREFIX = "headway_"


class _Collector(Collector):
    def __init__(self, limiters: tuple[Limiter, ...], labels: Labels) -> None:
        self._limiters = limiters
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        names = [LIMIT, *self._labels]
        for metric in STATS:
            kind = CounterMetricFamily if metric.counts else GaugeMetricFamily
            family = kind(PREFIX + metric.name, metric.meaning, labels=names)
            for values, number in totals(self._limiters, self._labels, metric):
                family.add_metric([values[name] for name in names], number)
            yield family


def collector(*limiters: Limiter, labels: Labels | None = None) -> Collector:
    """A collector over `stats()` of these limiters, to be registered once.

    >>> from prometheus_client import CollectorRegistry
    >>> registry = CollectorRegistry()
    >>> limiter = Limiter("2/minute", name="mail")
    >>> registry.register(collector(limiter, labels={"team": "payments"}))
    >>> _ = limiter.try_acquire()
    >>> registry.get_sample_value("headway_granted_total", {"limit": "mail", "team": "payments"})
    1
    """
    for limiter in limiters:
        if not isinstance(limiter, Limiter):
            raise InvalidArgument("limiter", limiter, "a headway.Limiter")
    own = dict(labels or {})
    check_labels(own)
    return _Collector(limiters, own)


def observer(
    labels: Labels | None = None, registry: CollectorRegistry = REGISTRY
) -> Callable[[LimiterEvent], None]:
    """An `on_event` that counts events by kind, and how long requests waited. One may serve many limiters.

    >>> from prometheus_client import CollectorRegistry
    >>> registry = CollectorRegistry()
    >>> limiter = Limiter("1/minute", name="search", on_event=observer(registry=registry))
    >>> _ = limiter.try_acquire(), limiter.try_acquire()
    >>> registry.get_sample_value("headway_events_total", {"limit": "search", "kind": "denied"})
    1.0
    """
    own = dict(labels or {})
    check_labels(own)
    events = Counter(PREFIX + EVENTS.name, EVENTS.meaning, [LIMIT, KIND, *own], registry=registry)
    wait = Histogram(
        f"{PREFIX}{WAIT.name}_seconds", WAIT.meaning, [LIMIT, *own], buckets=BUCKETS, registry=registry
    )

    def on_event(event: LimiterEvent) -> None:
        values = {LIMIT: event.limiter or "", **values_of(own, event)}
        events.labels(**values, **{KIND: event.kind}).inc()
        if event.kind == "waited" and event.seconds is not None:
            wait.labels(**values).observe(event.seconds)

    return on_event
