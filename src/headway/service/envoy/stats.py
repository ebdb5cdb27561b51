"""What was counted, under the names that dashboards for envoyproxy/ratelimit know.

Its figures are `ratelimit.service.rate_limit.DOMAIN.KEY_VALUE.STAT`, and its exporter for Prometheus makes of them
`ratelimit_service_rate_limit_STAT` with the labels `domain`, `key1`, `key2` and so on. `samples` has the latter.

    total_hits     hits that were asked for
    within_limit   hits that were granted
    near_limit     of them, those above 80 % of the limit
    over_limit     hits that were denied
    shadow_mode    of them, those that passed all the same, in shadow mode

There is one difference: hits of a request that *another* rule denied are in `total_hits` alone, since they were not
consumed. `refunded` counts what was given back, `overdrawn` what was charged beyond a limit that allows it,
`uncharged` what could not be, and `over_max_keys` what was denied because a rule has ledgers for as many keys as it
may: envoyproxy/ratelimit does not know these.

Metrics with values in their names (`detailed_metric`, `value_to_metric`, overrides) are bounded: when there are too
many, further ones are counted under the name of their rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

MOST_METRICS = 10_000
PREFIX = "ratelimit_service_rate_limit"
RULE = {
    "total_hits": "hits that were asked for",
    "within_limit": "hits that were granted",
    "near_limit": "hits that were granted near the limit",
    "over_limit": "hits that were denied",
    "shadow_mode": "hits that were denied and passed in shadow mode",
    "refunded": "hits that were given back",
    "overdrawn": "hits beyond the limit of a rule with an overdraft",
    "uncharged": "hits beyond the limit that could not be charged",
    "over_max_keys": "hits that were denied because a rule has as many keys as it may",
}
NAMES = tuple(RULE)
MEANINGS = {
    "ratelimit_service_total_requests": "requests",
    "ratelimit_service_config_load_success": "how often the rules were read",
    "ratelimit_service_config_load_error": "how often the rules could not be read",
    "ratelimit_service_global_shadow_mode": "requests that passed because all is in shadow mode",
    "ratelimit_service_should_rate_limit_error": "requests that were answered with an error",
    **{f"{PREFIX}_{name}": meaning for name, meaning in RULE.items()},
}


class Sample(NamedTuple):
    """One figure for a metrics page: a counter."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: int


class RuleStats:
    """The figures of one rule, or of one value where its metrics are detailed."""

    __slots__ = (*NAMES, "_quick", "_stats")

    def __init__(self, stats: Stats) -> None:
        self.total_hits = self.within_limit = self.near_limit = 0
        self.over_limit = self.shadow_mode = self.refunded = self.overdrawn = self.uncharged = 0
        self.over_max_keys = 0
        self._quick: Any = None
        self._stats = stats

    def counted_quickly(self, kind: type) -> Any:
        """What the compiled step counts in; `collect` adds it."""
        if self._quick is None:
            self._quick = kind()
        return self._quick

    def collect(self) -> None:
        """Add what the compiled step has counted."""
        if self._quick is not None:
            for name in ("total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode"):
                setattr(self, name, getattr(self, name) + getattr(self._quick, name))
                setattr(self._quick, name, 0)

    def passed(self, hits: int) -> None:
        """Hits of an unlimited rule."""
        self.total_hits += hits
        self.within_limit += hits

    def decided(
        self, hits: int, granted: bool, remaining: int, capacity: int, shadow: bool, given_back: bool
    ) -> None:
        """Hits that were asked for. `given_back`: another rule denied the request."""
        self.total_hits += hits
        if not granted:
            self.over_limit += hits
            self.shadow_mode += hits if shadow else 0
        elif not given_back:
            self.within_limit += hits
            near = int(capacity * self._stats.near_ratio)
            self.near_limit += min(hits, max(0, capacity - remaining - near))


class Stats:
    """The figures of a service."""

    def __init__(self, near_ratio: float = 0.8) -> None:
        self.requests = 0
        self.quick: Any = None
        """The compiled step, which counts the requests that it decides."""
        self.shadowed = 0
        """Requests that were denied and passed all the same, because the whole service is in shadow mode."""
        self.malformed = 0
        self.engine_errors = 0
        self.loads = self.failed_loads = 0
        """How often the configuration was read, and could not be."""
        self.near_ratio = near_ratio
        self._rules: dict[tuple[str, ...], RuleStats] = {}

    def of(self, metric: tuple[str, ...], rule: tuple[str, ...] | None = None) -> RuleStats:
        """The figures of a metric, or where there are too many, those of its rule."""
        found = self._rules.get(metric)
        if found is not None:
            found.collect()
            return found
        if len(self._rules) >= MOST_METRICS and rule is not None and rule != metric:
            return self.of(rule)
        found = self._rules[metric] = RuleStats(self)
        return found

    def samples(self) -> Iterator[Sample]:
        """Every figure."""
        requests = self.requests + (0 if self.quick is None else self.quick.requests)
        yield Sample("ratelimit_service_total_requests", (("grpc_method", "ShouldRateLimit"),), requests)
        yield Sample("ratelimit_service_config_load_success", (), self.loads)
        yield Sample("ratelimit_service_config_load_error", (), self.failed_loads)
        yield Sample("ratelimit_service_global_shadow_mode", (), self.shadowed)
        for kind, value in (("malformed", self.malformed), ("engine_error", self.engine_errors)):
            yield Sample("ratelimit_service_should_rate_limit_error", (("err_type", kind),), value)
        for metric, figures in list(self._rules.items()):
            domain, *keys = metric
            figures.collect()
            labels = (("domain", domain), *((f"key{n}", key) for n, key in enumerate(keys, 1)))
            for name in NAMES:
                yield Sample(f"{PREFIX}_{name}", labels, getattr(figures, name))

    def text(self) -> str:
        """Every figure, in the text format of Prometheus.

        >>> stats = Stats()
        >>> stats.of(("shop", "plan_gold")).passed(3)
        >>> [line for line in stats.text().splitlines() if line.startswith("ratelimit_service_rate_limit_total")]
        ['ratelimit_service_rate_limit_total_hits{domain="shop",key1="plan_gold"} 3']
        """
        rows: dict[str, list[str]] = {}
        for name, labels, value in self.samples():
            said = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
            rows.setdefault(name, []).append(f"{name}{{{said}}} {value}" if said else f"{name} {value}")
        return "".join(
            f"# HELP {name} {MEANINGS[name]}\n# TYPE {name} counter\n"
            + "".join(f"{row}\n" for row in rows[name])
            for name in rows
        )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
