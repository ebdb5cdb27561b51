"""Ledgers and gates behind `headway serve`, for processes that do not reach its engine: `http://` and `https://`.

The service carries the commands of the seam out on its own engine, under the names that a limiter has there: a process
that names the engine itself shares the same ledgers. From the bottom: `http11` speaks HTTP, `listener` and `channel`
are the two threads of a session, `requests` and `decision` what is said and answered, `ledgers` and `gate` the seam.
"""

from __future__ import annotations

from typing import Any

from headway.engines.http.address import read_address
from headway.engines.http.engine import Engine
from headway.engines.open_engines import OpenEngines
from headway.engines.uri import public
from headway.errors import InvalidArgument

__all__ = ["Engine", "check_uri", "open_scanner", "open_uri"]


def check_uri(uri: str) -> None:
    """Raise for a URI that makes no sense."""
    read_address(uri)


def _build(uri: str, timeout: float) -> Engine:
    return Engine(read_address(uri), timeout=timeout)


opened = OpenEngines(_build)
open_uri = opened.open


def open_scanner(uri: str, timeout: float) -> Any:  # noqa: ARG001
    """A service does not show all ledgers of its engine."""
    raise InvalidArgument("engine", public(uri), "the engine of that service itself: it has all ledgers")
