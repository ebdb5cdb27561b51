"""Fixtures for pytest.

Enable them where you want them, in a `conftest.py`:

    pytest_plugins = ["headway.testing.plugin"]

There is no entry point that would enable them automatically: such a plugin is imported into every pytest run of the
environment, also in projects that only have headway among their dependencies, and its fixture names could collide with
theirs. One explicit line says where `headway_clock` comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headway.testing.blocks import disabled, virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.testing.clocks import ManualClock

__all__ = ["headway_clock", "headway_disabled"]


@pytest.fixture
def headway_clock() -> Iterator[ManualClock]:
    """The test runs in a `virtual_time` block; this is its clock, which jumps when all threads and tasks sleep."""
    with virtual_time() as clock:
        yield clock


@pytest.fixture
def headway_disabled() -> Iterator[None]:
    """The test runs in a `disabled` block: no limiter limits."""
    with disabled():
        yield
