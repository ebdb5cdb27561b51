"""`Prefetch`: how a limiter on a shared engine keeps tokens at hand, checked, and with its defaults."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headway.core.durations import span_of
from headway.core.holder import Terms
from headway.errors import InvalidArgument

SHORTEST_TTL = 300_000_000
LONGEST = 3_600_000_000_000


@dataclass(frozen=True)
class Prefetch:
    """How tokens of a shared limit are kept at hand: for `Limiter(..., prefetch=Prefetch(...))`.

    A client asks for as many tokens as it expects to need, by what was asked of it in the last `predict_window`
    seconds, and for `min_tokens` at least. It holds them for `ttl` seconds and renews after a third of that. If the
    client vanishes, its tokens come back to the others after `ttl`; a longer one needs fewer calls.

    >>> Prefetch(ttl=10, min_tokens=5)
    Prefetch(predict_window=4.0, min_tokens=5, ttl=10)
    >>> Prefetch(ttl=0)
    Traceback (most recent call last):
    headway.errors.InvalidArgument: ttl=0 is not accepted; give seconds from 0.3 to 3600, or a timedelta
    """

    predict_window: float | timedelta = 4.0
    min_tokens: int = 1
    ttl: float | timedelta = 3.0

    def __post_init__(self) -> None:
        if _span(self.ttl, SHORTEST_TTL) is None:
            raise InvalidArgument("ttl", self.ttl, "seconds from 0.3 to 3600, or a timedelta")
        if _span(self.predict_window, SHORTEST_TTL) is None:
            raise InvalidArgument(
                "predict_window", self.predict_window, "seconds from 0.3 to 3600, or a timedelta"
            )
        if type(self.min_tokens) is not int or not 1 <= self.min_tokens <= 1 << 40:
            raise InvalidArgument("min_tokens", self.min_tokens, "an integer from 1 up")

    def terms(self, resolution_ns: int, drift_ppm: float, ledger_drift_ppm: float) -> Terms:
        """The same in nanoseconds, for a clock of this resolution and drift and a ledger of that drift."""
        ttl, predict = _span(self.ttl, 0), _span(self.predict_window, 0)
        assert ttl is not None
        assert predict is not None
        return Terms(
            ttl=ttl,
            margin=ttl // 10,
            predict=predict,
            resend=ttl // 6,
            resolution=resolution_ns,
            drift_ppm=-int(-drift_ppm // 1),
            ledger_drift_ppm=-int(-ledger_drift_ppm // 1),
            least=self.min_tokens,
        )


def _span(given: Any, shortest: int) -> int | None:
    ns = span_of(given)
    return ns if ns is not None and shortest <= ns <= LONGEST else None


def read(prefetch: Any) -> Prefetch:
    """What a user gave for `prefetch`, where that is not False."""
    if prefetch is True:
        return Prefetch()
    if isinstance(prefetch, Prefetch):
        return prefetch
    raise InvalidArgument("prefetch", prefetch, "True, False, or a Prefetch(...)")


def ttl_ns(prefetch: Any) -> int:
    """For how long tokens may be held without a word; 0 where none are."""
    if prefetch is False:
        return 0
    ns = _span(read(prefetch).ttl, 0)
    assert ns is not None
    return ns
