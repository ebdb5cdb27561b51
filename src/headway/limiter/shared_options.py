"""The terms of a limit that is kept elsewhere: which options make sense, and what the distance changes in a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.core.durations import span_of
from headway.core.limits import Limit, Spacing
from headway.core.rules import check_exact, rules_of
from headway.engines.redis import Engine
from headway.engines.redis.net.address import read_address
from headway.engines.redis.net.clients import ACCEPTED, is_client
from headway.engines.redis.script.protocol import TICK
from headway.errors import InvalidArgument, seconds_text

if TYPE_CHECKING:
    from headway.core.ledger import Rule

ERROR_MODES = ("closed", "open", "local")
LOSS_MODES = ("quarantine", "trust")


def check_engine(engine: Any) -> None:
    """Raise for what is no engine, before anything is asked that only a shared one needs."""
    if isinstance(engine, str):
        read_address(engine)
    elif not isinstance(engine, Engine) and not is_client(engine):
        # Of anything but a number its type alone: there may be a password in it.
        shown = engine if engine is None or isinstance(engine, int | float) else type(engine)
        raise InvalidArgument("engine", shown, ACCEPTED)


def checked_name(name: Any) -> str:
    """The name of the ledgers."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument("name", name, "a name: on a shared engine it says whose ledgers are meant")
    return name


def check_options(start: Any, on_engine_error: Any, on_ledger_loss: Any, local_share: Any) -> None:
    """Raise for what makes no sense on a shared engine."""
    if start != "idle":
        raise InvalidArgument("start", start, "'idle': a shared ledger survives its clients")
    if on_engine_error not in ERROR_MODES:
        raise InvalidArgument("on_engine_error", on_engine_error, "'closed', 'open' or 'local'")
    if on_ledger_loss not in LOSS_MODES:
        raise InvalidArgument("on_ledger_loss", on_ledger_loss, "'quarantine' or 'trust'")
    if type(local_share) not in (int, float) or not 0 < local_share <= 1:
        raise InvalidArgument("local_share", local_share, "a share of the limit, above 0 and up to 1")


def engine_timeout_ns(timeout: Any) -> int:
    """How long the engine has for an answer."""
    ns = span_of(timeout)
    if ns is None or not 1_000_000 <= ns <= 3_600_000_000_000:
        raise InvalidArgument("engine_timeout", timeout, "seconds from 0.001 to 3600, or a timedelta")
    return ns


def quarantine_ns(longest: Any) -> int | None:
    """For how long a ledger that was lost may stand still; None for no cap."""
    if longest is None:
        return None
    ns = span_of(longest)
    if ns is None or ns < 0:
        raise InvalidArgument("max_quarantine", longest, "seconds from 0 up, or None for no cap")
    return ns


def at_distance(limit: Limit, engine: Engine, measure: bool = True) -> Limit:
    """A limit as it is kept from afar: whoever sleeps until a slot of a `Spacing` may be late by a little.

    In the midst of a call nothing is measured: it goes by what is known.
    """
    if not isinstance(limit, Spacing) or not limit.strict:
        return limit
    least = 2 * engine.round_trip_ns(measure)
    if limit.expire_after_ns is None:
        allowance = max(limit.interval_ns // 100, least, 3_000_000)
        return Spacing(
            f"{limit.interval_ns}ns", max_reserved=limit.max_reserved, expire_after=f"{allowance}ns"
        )
    if limit.expire_after_ns < least:
        raise InvalidArgument(
            "expire_after",
            limit.expire_after_ns / 1e9,
            f"at least {seconds_text(least / 1e9)}, twice the round trip to {engine.address}: "
            "less and every slot is over before it is heard of",
        )
    return limit


def rules_at(limit: Limit, engine: Engine) -> tuple[Rule, ...]:
    """The rules of a limit by the engine's clock, in numbers that its scripts can reckon with."""
    rules = rules_of(limit, TICK, engine.drift_ppm, TICK, engine.lease_ns)
    check_exact(rules)
    return rules


def text_of(limits: dict[str, Limit]) -> str:
    """The limits as they are written down beside the ledger, for whoever looks at it."""
    return "; ".join(f"{metric}: {part}" if metric else str(part) for metric, part in limits.items())
