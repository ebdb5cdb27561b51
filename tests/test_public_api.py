"""The public names: sorted, documented, with an example that runs (make check runs them)."""

import inspect
import types

import pytest

import headway


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
