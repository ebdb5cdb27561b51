"""Figures of limiters as OpenTelemetry instruments.

    instrument(limiter, labels={"team": "payments"})
    limiter = Limiter("100/minute", name="partner", on_event=observer())

The first shows what `stats()` counts whenever a reader collects; the second counts what only events tell. `meter` is
one of the global meter provider if it is not given. `labels` become attributes: values, or functions of the limiter or
of the event. The names are in `headway.integrations.metric_names`, and those of Prometheus after an exporter has
written them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from headway import InvalidArgument, Limiter, LimiterEvent, __version__
from headway.integrations.metric_names import (
    BUCKETS,
    EVENTS,
    KIND,
    LIMIT,
    STATS,
    WAIT,
    Labels,
    Metric,
    check_labels,
    totals,
    values_of,
)

__all__ = ["instrument", "observer"]

PREFIX = "headway."


def instrument(*limiters: Limiter, labels: Labels | None = None, meter: Meter | None = None) -> None:
    """Observe `stats()` of these limiters. A meter takes each name once, so give all limiters in one call.

    >>> limiter = Limiter("2/minute", name="maps")
    >>> instrument(limiter, labels={"team": "payments"})
    """
    for limiter in limiters:
        if not isinstance(limiter, Limiter):
            raise InvalidArgument("limiter", limiter, "a headway.Limiter")
    own = dict(labels or {})
    check_labels(own)
    meter = _meter(meter)
    for metric in STATS:
        make = meter.create_observable_counter if metric.counts else meter.create_observable_up_down_counter
        observe = partial(_observe, limiters, own, metric)
        make(PREFIX + metric.name, callbacks=[observe], description=metric.meaning)


def _observe(
    limiters: tuple[Limiter, ...],
    labels: Labels,
    metric: Metric,
    _: CallbackOptions,
) -> Iterable[Observation]:
    for values, number in totals(limiters, labels, metric):
        yield Observation(number, values)


def observer(labels: Labels | None = None, meter: Meter | None = None) -> Callable[[LimiterEvent], None]:
    """An `on_event` that counts events by kind, and how long requests waited. One may serve many limiters.

    >>> limiter = Limiter("1/minute", name="tiles", on_event=observer())
    >>> bool(limiter.try_acquire())
    True
    """
    own = dict(labels or {})
    check_labels(own)
    meter = _meter(meter)
    events = meter.create_counter(PREFIX + EVENTS.name, description=EVENTS.meaning)
    wait = meter.create_histogram(
        PREFIX + WAIT.name,
        unit="s",
        description=WAIT.meaning,
        explicit_bucket_boundaries_advisory=BUCKETS,
    )

    def on_event(event: LimiterEvent) -> None:
        values = {LIMIT: event.limiter or "", **values_of(own, event)}
        events.add(1, {**values, KIND: event.kind})
        if event.kind == "waited" and event.seconds is not None:
            wait.record(event.seconds, values)

    return on_event


def _meter(meter: Meter | None) -> Meter:
    return get_meter("headway", __version__) if meter is None else meter
