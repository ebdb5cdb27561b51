"""Figures, under the names that dashboards for envoyproxy/ratelimit know."""

import pytest

from headway.service.envoy import stats as stats_module
from headway.service.envoy.messages import LimitOverride, Unit
from headway.service.envoy.stats import NAMES, Stats
from headway.testing import ManualClock
from service.envoy.asking import ask, descriptor, service_of


def figures(service, *metric):
    found = service.stats.of(("d", *metric))
    return {name: getattr(found, name) for name in NAMES if getattr(found, name)}


@pytest.fixture
def clock():
    return ManualClock()


def test_hits_are_counted_by_what_became_of_them(clock):
    service = service_of("  - {key: user, limit: 10/minute}", clock=clock)
    for _ in range(12):
        ask(service, "user=a")
    assert figures(service, "user") == {
        "total_hits": 12,
        "within_limit": 10,
        "near_limit": 2,
        "over_limit": 2,
    }


@pytest.mark.parametrize(
    ("hits", "near"), [([8], 0), ([9], 1), ([10], 2), ([7, 2], 1), ([8, 2], 2), ([9, 1], 2), ([1] * 10, 2)]
)
def test_near_the_limit_are_the_hits_above_four_fifths_of_it(clock, hits, near):
    service = service_of("  - {key: user, limit: 10/minute}", clock=clock)
    for each in hits:
        ask(service, "user=a", hits_addend=each)
    assert figures(service, "user").get("near_limit", 0) == near


def test_the_ratio_of_near_can_be_another(clock):
    service = service_of("  - {key: user, limit: 10/minute}", clock=clock, near_ratio=0.5)
    ask(service, "user=a", hits_addend=7)
    assert figures(service, "user")["near_limit"] == 2


def test_hits_of_a_request_that_another_rule_denied_are_not_within(clock):
    service = service_of("  - {key: user, limit: 10/minute}\n  - {key: path, limit: 1/minute}", clock=clock)
    for _ in range(3):
        ask(service, "user=a", "path=x")
    assert figures(service, "user") == {"total_hits": 3, "within_limit": 1}
    assert figures(service, "path") == {"total_hits": 3, "within_limit": 1, "near_limit": 1, "over_limit": 2}


def test_shadow_mode_unlimited_looks_and_refunds(clock):
    service = service_of(
        """
  - {key: user, limit: 1/minute, shadow_mode: true}
  - {key: free, rate_limit: {unlimited: true}}
""",
        clock=clock,
    )
    for _ in range(3):
        ask(service, "user=a", "free=x", hits_addend=1)
    ask(service, descriptor("user=a", hits_addend=0))
    ask(service, descriptor("user=a", is_negative_hits=True))
    assert figures(service, "user") == {
        "total_hits": 3, "within_limit": 1, "near_limit": 1, "over_limit": 2, "shadow_mode": 2, "refunded": 1,
    }  # fmt: skip
    assert figures(service, "free") == {"total_hits": 3, "within_limit": 3}


def test_samples_have_the_names_and_labels_of_its_exporter(clock):
    service = service_of(
        """
  - key: kind
    value: a.b
    descriptors: [{key: to, limit: 5/minute}]
  - {key: user, detailed_metric: true, limit: 5/minute}
""",
        clock=clock,
    )
    ask(service, descriptor("kind=a.b", "to=1"), descriptor("user=x"))
    ask(service, descriptor("user=y", limit=LimitOverride(5, Unit.DAY)))
    found = {(sample.name, sample.labels): sample.value for sample in service.stats.samples()}
    domain = ("domain", "d")
    total = "ratelimit_service_rate_limit_total_hits"
    assert found["ratelimit_service_total_requests", (("grpc_method", "ShouldRateLimit"),)] == 2
    assert found[total, (domain, ("key1", "kind_a.b"), ("key2", "to"))] == 1
    assert found[total, (domain, ("key1", "user_x"))] == 1
    assert found[total, (domain, ("key1", "user_y"))] == 1
    assert found["ratelimit_service_should_rate_limit_error", (("err_type", "engine_error"),)] == 0
    assert {name for name, labels in found if domain in labels} == {
        f"ratelimit_service_rate_limit_{name}" for name in NAMES
    }


def test_metrics_with_values_in_their_names_are_bounded(clock, monkeypatch):
    monkeypatch.setattr(stats_module, "MOST_METRICS", 20)
    service = service_of("  - {key: user, detailed_metric: true, limit: 5/minute}", clock=clock)
    for number in range(100):
        ask(service, f"user={number}")
    assert len(service.stats._rules) <= 21
    assert figures(service, "user") == {"total_hits": 80, "within_limit": 80}
    assert figures(service, "user_3") == {"total_hits": 1, "within_limit": 1}


def test_a_metric_is_made_once():
    stats = Stats()
    assert stats.of(("d", "a")) is stats.of(("d", "a"))
