"""Figures of limiters: what prometheus_client exposes, parsed, and what a reader of OpenTelemetry collects."""

from __future__ import annotations

import itertools

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headway import InvalidArgument, Limiter
from headway.integrations import metric_names, opentelemetry, prometheus

COUNTS = {"granted": 3, "denied": 1, "completed": 1, "cancelled": 1, "abandoned": 0, "waiting": 0, "keys": 2}
"""What `used` leaves behind."""


_names = itertools.count()


def new_name():
    """In memory too, limiters of one name share what they count, and those of another test may live on."""
    return f"partner-{next(_names)}"


def used(**options) -> Limiter:
    """A limiter with a little of everything."""
    limiter = Limiter("2/minute", name=new_name(), **options)
    with limiter.hold("a"):
        pass
    limiter.acquire("a")
    limiter.acquire("b").cancel()
    assert not limiter.try_acquire("a")
    return limiter


def exposed(registry):
    """{name: {labels: value}}, from the text that is scraped."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


class Meters:
    """A meter, and what its reader sees."""

    def __init__(self):
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider(metric_readers=[self._reader])
        self.meter = self._provider.get_meter("test")

    def points(self):
        data = self._reader.get_metrics_data()
        return {
            metric.name: {
                tuple(sorted((point.attributes or {}).items())): point for point in metric.data.data_points
            }
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def values(self, name):
        return {labels: point.value for labels, point in self.points().get(name, {}).items()}

    def close(self):
        self._provider.shutdown()


@pytest.fixture
def meters():
    made = Meters()
    yield made
    made.close()


def labels_of(limiter):
    return (("limit", limiter.name), ("team", "payments"))


def test_prometheus_shows_what_stats_counts():
    registry = CollectorRegistry()
    limiter = used()
    registry.register(prometheus.collector(limiter, labels={"team": "payments"}))
    found = exposed(registry)
    for metric in metric_names.STATS:
        name = f"headway_{metric.name}_total" if metric.counts else f"headway_{metric.name}"
        assert found[name] == {labels_of(limiter): COUNTS[metric.name]}, name


def test_opentelemetry_shows_what_stats_counts(meters):
    limiter = used()
    opentelemetry.instrument(limiter, labels={"team": "payments"}, meter=meters.meter)
    for metric in metric_names.STATS:
        assert meters.values(f"headway.{metric.name}") == {labels_of(limiter): COUNTS[metric.name]}


def test_figures_are_those_of_the_moment_at_which_they_are_read(meters):
    limiter = Limiter("100/minute", name=new_name())
    own = (("limit", limiter.name),)
    registry = CollectorRegistry()
    registry.register(prometheus.collector(limiter))
    opentelemetry.instrument(limiter, meter=meters.meter)
    for number in (0, 1, 2):
        assert exposed(registry)["headway_granted_total"] == {own: number}
        assert meters.values("headway.granted") == {own: number}
        limiter.acquire()


def test_keys_make_no_figures(meters):
    """A client that invents keys must not fill the memory of whatever scrapes."""
    registry = CollectorRegistry()
    observers = [prometheus.observer(registry=registry), opentelemetry.observer(meter=meters.meter)]
    limiter = Limiter("1/minute", name=new_name(), on_event=lambda event: [one(event) for one in observers])
    registry.register(prometheus.collector(limiter))
    for number in range(200):
        limiter.try_acquire(f"key {number}")
    assert all(
        len(labels) <= 20 for labels in exposed(registry).values()
    )  # the buckets of a histogram are 16
    assert meters.values("headway.events") == {(("kind", "granted"), ("limit", limiter.name)): 200}


def test_limiters_of_the_same_labels_are_one(meters):
    limiters = [Limiter("5/minute") for _ in range(3)] + [Limiter("5/minute", name=new_name())]
    limiters.append(Limiter("5/minute", name=limiters[-1].name))  # the same ledgers, and the same counts
    for limiter in limiters[:4]:
        limiter.acquire()
    registry = CollectorRegistry()
    registry.register(prometheus.collector(*limiters))
    opentelemetry.instrument(*limiters, meter=meters.meter)
    expected = {(("limit", ""),): 3, (("limit", limiters[-1].name),): 1}
    assert exposed(registry)["headway_granted_total"] == expected
    assert meters.values("headway.granted") == expected


def test_labels_may_be_functions(meters):
    registry = CollectorRegistry()
    labels = {"kind_of_limit": lambda limiter: limiter.limit.kind}
    limiter = used()
    registry.register(prometheus.collector(limiter, labels=labels))
    assert list(exposed(registry)["headway_granted_total"]) == [
        (("kind_of_limit", "window"), ("limit", limiter.name))
    ]
    observe = opentelemetry.observer(labels={"shop": lambda event: event.key}, meter=meters.meter)
    used(on_event=observe)
    shops = {dict(labels)["shop"] for labels in meters.values("headway.events")}
    assert shops == {"a", "b"}


def test_events_and_waits_are_counted(meters):
    registry = CollectorRegistry()
    observers = [prometheus.observer(registry=registry), opentelemetry.observer(meter=meters.meter)]
    limiter = Limiter(
        "20/s burst 1", name=new_name(), on_event=lambda event: [one(event) for one in observers]
    )
    limiter.acquire()
    limiter.acquire()  # waits 50 ms
    limiter.pause(1)
    limiter.try_acquire()
    found = exposed(registry)
    counted = {dict(labels)["kind"]: number for labels, number in found["headway_events_total"].items()}
    assert {kind: counted[kind] for kind in ("granted", "waited", "denied", "paused")} == {
        "granted": 1, "waited": 1, "denied": 1, "paused": 1,
    }  # fmt: skip
    own = (("limit", limiter.name),)
    assert found["headway_wait_seconds_count"] == {own: 1}
    assert found["headway_wait_seconds_sum"][own] >= 0.04
    (point,) = meters.points()["headway.wait"].values()
    assert (point.count, point.sum >= 0.04, point.explicit_bounds) == (1, True, metric_names.BUCKETS)
    kinds = {dict(labels)["kind"]: number for labels, number in meters.values("headway.events").items()}
    assert kinds == counted


def test_bad_input(meters):
    limiter = Limiter("1/s")
    for make in (
        lambda **options: prometheus.collector(limiter, **options),
        lambda **options: opentelemetry.instrument(limiter, meter=meters.meter, **options),
        lambda **options: prometheus.observer(registry=CollectorRegistry(), **options),
        lambda **options: opentelemetry.observer(meter=meters.meter, **options),
    ):
        for name in ("limit", "", "__name__", 5):
            with pytest.raises(InvalidArgument):
                make(labels={name: "mine"})
    with pytest.raises(InvalidArgument):
        prometheus.collector("100/minute")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        opentelemetry.instrument("100/minute", meter=meters.meter)  # type: ignore[arg-type]


def test_the_service_uses_the_same_names():
    from headway.service.metrics import Metrics

    metrics = Metrics()
    metrics.granted("partner", 0.1)
    metrics.denied("partner", "limit", 0.1)
    families = {family.name: family.documentation for family in metrics._registry.collect()}
    for metric in (metric_names.GRANTED, metric_names.DENIED, metric_names.WAITING):
        assert families[f"headway_{metric.name}"] == metric.meaning
