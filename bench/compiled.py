"""Builds the load generator, which is Cython, into `build/bench` when it is needed first."""

from __future__ import annotations

from typing import Any

from bench.alone import ROOT
from bench.figure import NotMeasured


def grpc_load() -> Any:
    """The module `bench/grpc_load.pyx`."""
    try:
        import pyximport
    except ImportError:
        raise NotMeasured("the load generator needs Cython and a C compiler: pip install Cython") from None
    finders = pyximport.install(build_dir=str(ROOT / "build" / "bench"), language_level=3)
    try:
        from bench import grpc_load as module  # type: ignore[attr-defined]
    except ImportError as error:
        raise NotMeasured(f"the load generator cannot be built: {error}") from None
    finally:
        pyximport.uninstall(*finders)
    return module
