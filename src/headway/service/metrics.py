"""Figures for Prometheus, by limit and never by key: a client that invents keys must not make figures.

headway_granted_total{limit}            permits that were granted
headway_denied_total{limit,reason}      requests that got none, by why
headway_shadow_denied_total{limit}      requests that a limit in shadow mode would have denied
headway_acquire_seconds{limit}          from the request to its answer, with the time that it waited
headway_waiting{limit}                  requests that wait now
headway_permits{limit}                  permits that clients of this server hold now
headway_keys{limit}                     keys that count against max_keys
headway_requests_total{path,status}     answers, by the path of the API and the status
headway_connections                     connections that are open now
headway_engine_up                       1 if the engine answered when it was looked at last
headway_config_reloads_total{result}    reloads of the file: "ok", or "failed", which changed nothing
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headway.integrations.metric_names import BUCKETS, DENIED, GRANTED, WAITING
from headway.service.figures import LimitFigures

if TYPE_CHECKING:
    from headway.service.limits import Limits
    from headway.service.permits import HeldPermits

CONTENT_TYPE = CONTENT_TYPE_LATEST
NONE_YET: Final = dict.fromkeys(("limit", "max_keys", "max_waiting", "quarantine"), 0)
"""A count that begins at 1 has not increased, as Prometheus sees it: what alerts ask for is there from the start."""
MOST_GONE: Final = 1000
"""Limits that are served no more and whose counts stay: the API may put and delete names without end."""


class _Counts(Collector):
    """What is counted here, when it is asked for."""

    def __init__(self) -> None:
        self.limits: dict[str, LimitFigures] = {}
        self.answers: dict[str, dict[int, int]] = {}

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        granted = CounterMetricFamily("headway_granted", GRANTED.meaning, labels=["limit"])
        denied = CounterMetricFamily("headway_denied", DENIED.meaning, labels=["limit", "reason"])
        shadow = CounterMetricFamily(
            "headway_shadow_denied", "requests that a shadow would have denied", labels=["limit"]
        )
        seconds = HistogramMetricFamily(
            "headway_acquire_seconds", "from the request to its answer", labels=["limit"]
        )
        requests = CounterMetricFamily("headway_requests", "answers", labels=["path", "status"])
        for name, figures in self.limits.items():
            granted.add_metric([name], figures.granted)
            if figures.shadow_denied:
                shadow.add_metric([name], figures.shadow_denied)
            for reason, count in {**NONE_YET, **figures.denied}.items():
                denied.add_metric([name, reason], count)
            bounds = [*map(float, BUCKETS), "+Inf"]
            counts = [
                (str(bound), count) for bound, count in zip(bounds, accumulate(figures.within), strict=True)
            ]
            seconds.add_metric([name], counts, figures.seconds)
        for path, statuses in self.answers.items():
            for status, count in statuses.items():
                requests.add_metric([path, str(status)], count)
        yield from (granted, denied, shadow, seconds, requests)


class Metrics:
    """The figures of one service."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._counts = _Counts()
        registry.register(self._counts)
        self._limits = self._counts.limits
        self._waiting = Gauge("headway_waiting", WAITING.meaning, ["limit"], registry=registry)
        self._permits = Gauge("headway_permits", "permits that are out now", ["limit"], registry=registry)
        self._keys = Gauge("headway_keys", "keys that count against max_keys", ["limit"], registry=registry)
        self._reloads = Counter(
            "headway_config_reloads", "reloads of the file", ["result"], registry=registry
        )
        for result in ("ok", "failed"):
            self._reloads.labels(result)
        self.connections = Gauge("headway_connections", "connections that are open now", registry=registry)
        self.engine_up = Gauge("headway_engine_up", "whether the engine answered last", registry=registry)

    def of(self, limit: str) -> LimitFigures:
        """The counts of a limit: to be counted there."""
        return self._limits.get(limit) or self._limits.setdefault(limit, LimitFigures())

    def granted(self, limit: str, seconds: float) -> None:
        self.of(limit).grant(seconds)

    def denied(self, limit: str, reason: str, seconds: float, *, shadow: bool = False) -> None:
        self.of(limit).deny(reason, seconds, shadow)

    def answered(self, path: str, status: int) -> None:
        answers = self.answers_of(path)
        answers[status] = answers.get(status, 0) + 1

    def answers_of(self, path: str) -> dict[int, int]:
        """The answers to the calls of a path, by their status: to be counted there."""
        return self._counts.answers.setdefault(path, {})

    def reloaded(self, result: str) -> None:
        self._reloads.labels(result).inc()

    def text(self, limits: Limits, permits: HeldPermits) -> bytes:
        """All figures. Of a limit that is served no more, those of the moment are gone; counters stay for long."""
        for gauge in (self._waiting, self._permits, self._keys):
            gauge.clear()
        for served in limits:
            self.of(served.name)
            self._waiting.labels(served.name).set(served.waiting)
            self._permits.labels(served.name).set(permits.out(served.name))
            self._keys.labels(served.name).set(len(served.keys))
        return generate_latest(self._registry)

    def forget_gone(self, served: Container[str]) -> None:
        """Forget the counts of limits that are served no more, where they are many: the oldest ones."""
        gone = [name for name in self._limits if name not in served]
        for name in gone[: max(0, len(gone) - MOST_GONE)]:
            del self._limits[name]
