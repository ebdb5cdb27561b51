"""The public names: sorted, documented, with an example that runs (make check runs them)."""

import importlib
import inspect
import types

import pytest

import headway
from headway import errors


def test_all_is_sorted_and_real():
    assert list(headway.__all__) == sorted(set(headway.__all__))
    assert [name for name in headway.__all__ if not hasattr(headway, name)] == []


def test_nothing_private_is_exported():
    assert [name for name in headway.__all__ if name.startswith("_") and name != "__version__"] == []


def test_nothing_else_leaks():
    """What is reachable without underscore is in __all__ or a submodule of headway itself."""
    leaks = [
        name
        for name, value in vars(headway).items()
        if not name.startswith("_")
        and name not in headway.__all__
        and not (isinstance(value, types.ModuleType) and value.__name__ == f"headway.{name}")
    ]
    assert leaks == []


@pytest.mark.parametrize("name", headway.__all__)
def test_name_is_documented(name):
    value = getattr(headway, name)
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return  # a constant is documented where it is set
    doc = value.__doc__  # not inspect.getdoc: what a class inherits does not document it
    assert doc, f"headway.{name} has no docstring"
    if not (inspect.isclass(value) and issubclass(value, BaseException)):
        assert ">>>" in doc, f"headway.{name} has no example in its docstring"


def test_every_error_is_exported():
    """A user catches errors by their public names."""
    assert set(errors.__all__) <= set(headway.__all__)
    assert [
        name for name in errors.__all__ if not issubclass(getattr(headway, name), headway.HeadwayError)
    ] == []


def test_dir_shows_public_names_only():
    assert dir(headway) == sorted(headway.__all__)
    assert importlib.import_module("headway.testing").ManualClock, "what is imported by its name stays there"


VERBS = {
    "acquire", "acquire_async", "close", "close_async", "feedback", "feedback_async", "hold", "limit", "name",
    "pause", "pause_async", "peek", "peek_async", "rate", "reserve", "reserve_async", "reset", "reset_all",
    "reset_all_async", "reset_async", "set_limit", "set_limit_async", "stats", "try_acquire",
    "try_acquire_async",
}  # fmt: skip
PERMIT = {
    "abandon", "cancel", "check", "complete", "cost", "delay", "ended", "expires_in", "key", "settle", "status",
    "status_async", "wait", "wait_async",
}  # fmt: skip


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def test_a_limiter_and_a_permit_show_their_verbs_and_nothing_else():
    assert public(headway.Limiter) == VERBS
    assert public(headway.Permit) == PERMIT
