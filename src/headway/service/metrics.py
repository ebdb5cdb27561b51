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

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

if TYPE_CHECKING:
    from headway.service.limits import Limits
    from headway.service.permits import HeldPermits

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The figures of one service."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._granted = Counter("headway_granted", "permits that were granted", ["limit"], registry=registry)
        self._denied = Counter(
            "headway_denied", "requests that got none", ["limit", "reason"], registry=registry
        )
        self._shadow = Counter(
            "headway_shadow_denied", "requests that a shadow would have denied", ["limit"], registry=registry
        )
        self._seconds = Histogram(
            "headway_acquire_seconds",
            "from the request to its answer",
            ["limit"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._waiting = Gauge("headway_waiting", "requests that wait now", ["limit"], registry=registry)
        self._permits = Gauge("headway_permits", "permits that are out now", ["limit"], registry=registry)
        self._keys = Gauge("headway_keys", "keys that count against max_keys", ["limit"], registry=registry)
        self._requests = Counter("headway_requests", "answers", ["path", "status"], registry=registry)
        self._reloads = Counter(
            "headway_config_reloads", "reloads of the file", ["result"], registry=registry
        )
        self.connections = Gauge("headway_connections", "connections that are open now", registry=registry)
        self.engine_up = Gauge("headway_engine_up", "whether the engine answered last", registry=registry)

    def granted(self, limit: str, seconds: float) -> None:
        self._granted.labels(limit).inc()
        self._seconds.labels(limit).observe(seconds)

    def denied(self, limit: str, reason: str, seconds: float, *, shadow: bool = False) -> None:
        if shadow:
            self._shadow.labels(limit).inc()
        else:
            self._denied.labels(limit, reason).inc()
        self._seconds.labels(limit).observe(seconds)

    def answered(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def reloaded(self, result: str) -> None:
        self._reloads.labels(result).inc()

    def text(self, limits: Limits, permits: HeldPermits) -> bytes:
        """All figures. Of a limit that is served no more, those of the moment are gone; counters stay."""
        for gauge in (self._waiting, self._permits, self._keys):
            gauge.clear()
        for served in limits:
            self._waiting.labels(served.name).set(served.waiting)
            self._permits.labels(served.name).set(permits.out(served.name))
            self._keys.labels(served.name).set(len(served.keys))
        return generate_latest(self._registry)
