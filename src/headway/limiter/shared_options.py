"""The options that only mean something on a shared engine: checked, and with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.core.durations import span_of
from headway.errors import InvalidArgument
from headway.limiter import prefetch_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.clock import Clock
    from headway.core.remote import Remote
    from headway.engines.base import Engine
    from headway.events import EventEmitter, LimiterEvent
    from headway.limiter.limit_table import Overrides

ERROR_MODES = ("closed", "open", "local")
LOSS_MODES = ("quarantine", "trust")
DEFAULTS: dict[str, Any] = {
    "on_engine_error": "closed",
    "engine_timeout": 0.25,
    "local_share": 0.1,
    "on_ledger_loss": None,
    "max_quarantine": 60,
    "prefetch": False,
}


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """What a limiter on a shared engine is told, besides its limit."""

    name: str
    engine: Engine
    clock: Clock
    remote: Remote | bool | None
    overrides: Overrides | None
    timeout_ns: int | None
    max_waiting: int | None
    on_event: Callable[[LimiterEvent], object] | None
    emitter: EventEmitter | None
    on_engine_error: str
    engine_timeout_ns: int
    local_share: float
    on_ledger_loss: str
    max_quarantine_ns: int | None
    lease_ttl_ns: int = 0

    def measured_overrides(self) -> list[Any]:
        """The limits of single keys that are known now: what has to be measured for them is measured now."""
        limits = self.overrides.values() if isinstance(self.overrides, Mapping) else ()
        return [limit for limit in limits if limit is not None]


def refuse_in_memory(given: Mapping[str, Any]) -> None:
    """Raise for options that say what happens when an engine is away or forgets: memory is neither."""
    unused = {option: value for option, value in given.items() if value != DEFAULTS[option]}
    if unused:
        raise InvalidArgument(
            "options",
            unused,
            "them with a shared engine, such as engine='redis://...'; memory:// cannot fail, nor lose a ledger",
        )


def checked_name(name: Any) -> str:
    """The name of the ledgers."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument("name", name, "a name: on a shared engine it says whose ledgers are meant")
    return name


def checked(given: Mapping[str, Any], start: Any) -> dict[str, Any]:
    """The fields of `SharedOptions` that these options fill; raises for what makes no sense."""
    if start != "idle":
        raise InvalidArgument("start", start, "'idle': a shared ledger survives its clients")
    mode, loss, share = given["on_engine_error"], given["on_ledger_loss"], given["local_share"]
    if mode not in ERROR_MODES:
        raise InvalidArgument("on_engine_error", mode, "'closed', 'open' or 'local'")
    if loss is None:
        # "open" prefers availability: a ledger that was lost does not stop its callers either.
        loss = "trust" if mode == "open" else "quarantine"
    if loss not in LOSS_MODES:
        raise InvalidArgument("on_ledger_loss", loss, "'quarantine' or 'trust'")
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise InvalidArgument("local_share", share, "a share of the limit, above 0 and up to 1")
    return {
        "on_engine_error": mode,
        "on_ledger_loss": loss,
        "local_share": share,
        "engine_timeout_ns": _engine_timeout_ns(given["engine_timeout"]),
        "max_quarantine_ns": _quarantine_ns(given["max_quarantine"]),
        "lease_ttl_ns": prefetch_options.ttl_ns(given["prefetch"]),
    }


def _engine_timeout_ns(timeout: Any) -> int:
    """How long the engine has for an answer."""
    ns = span_of(timeout)
    if ns is None or not 1_000_000 <= ns <= 3_600_000_000_000:
        raise InvalidArgument("engine_timeout", timeout, "seconds from 0.001 to 3600, or a timedelta")
    return ns


def _quarantine_ns(longest: Any) -> int | None:
    """For how long a ledger that was lost may stand still; None for no cap."""
    if longest is None:
        return None
    ns = span_of(longest)
    if ns is None or ns < 0:
        raise InvalidArgument("max_quarantine", longest, "seconds from 0 up, or None for no cap")
    return ns
