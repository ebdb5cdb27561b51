"""Methods that an engine keeps of a limiter, without keeping the limiter."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weak_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method, without keeping its object alive; None instead of a result when the object is gone."""
    owner = getattr(method, "__self__", None)
    if owner is None:
        return method
    reference, name = weakref.ref(owner), method.__name__  # a compiled method is no `types.MethodType`

    def call(*arguments: Any) -> Any:
        alive = reference()
        return None if alive is None else getattr(alive, name)(*arguments)

    return call
