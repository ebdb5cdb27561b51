"""What the blocks ask of the memory engine, written down."""

from types import SimpleNamespace
from typing import Any

import pytest

from headway.engines import memory as engine


@pytest.fixture
def memory(monkeypatch):
    """Stands in for the three functions of `headway.engines.memory`, and records."""
    calls: list[tuple[str, int]] = []
    seen: Any = SimpleNamespace(calls=calls, disabled=[False])

    def set_aside():
        calls.append(("set_aside", len(calls)))
        return len(calls) - 1

    def set_disabled(flag):
        before, seen.disabled[0] = seen.disabled[0], flag
        return before

    monkeypatch.setattr(engine, "set_aside", set_aside)
    monkeypatch.setattr(engine, "bring_back", lambda token: calls.append(("bring_back", token)))
    monkeypatch.setattr(engine, "set_disabled", set_disabled)
    return seen
