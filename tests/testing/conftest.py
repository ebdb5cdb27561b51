"""The blocks need three functions of the memory engine; where it is not there yet, something with the same contract."""

import importlib.util
import sys
import types

import pytest


@pytest.fixture
def memory(monkeypatch):
    """Records what the blocks ask of `headway.engines.memory`."""
    calls = []
    disabled = [False]
    stub = types.ModuleType("headway.engines.memory")

    def set_aside():
        calls.append(("set_aside", len(calls)))
        return len(calls) - 1

    def set_disabled(flag):
        before, disabled[0] = disabled[0], flag
        return before

    stub.set_aside = set_aside
    stub.bring_back = lambda token: calls.append(("bring_back", token))
    stub.set_disabled = set_disabled
    stub.calls = calls
    stub.disabled = disabled
    monkeypatch.setitem(sys.modules, "headway.engines.memory", stub)
    engines = sys.modules.get("headway.engines")
    if engines is not None:
        monkeypatch.setattr(engines, "memory", stub, raising=False)
    return stub


@pytest.fixture(autouse=True)
def _memory_is_there(request):
    if importlib.util.find_spec("headway.engines.memory") is None:
        request.getfixturevalue("memory")
