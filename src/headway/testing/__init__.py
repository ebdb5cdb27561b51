"""Clocks and runners for tests of code that waits.

A test that sleeps is slow, and a test that sleeps less than the code it tests is flaky. Here time is a number that
the test owns:

    ManualClock     a clock that stands still until it is advanced, or jumps when all sleep   clocks.py
    run             asyncio.run on virtual time; VirtualLoop, loop_factory for others   runner.py, loop.py
    virtual_time    a block in which limiters that exist already follow such a clock    blocks.py
    disabled        a block in which no limiter limits                                  blocks.py
    plugin          the pytest fixtures headway_clock and headway_disabled              plugin.py

Below them: `alarms.py` (which sleeper wakes when), `crew.py` (when all threads are asleep), `idle.py` (when an ordinary
event loop is idle).
"""

from headway.testing.blocks import disabled, virtual_time
from headway.testing.clocks import ManualClock
from headway.testing.loop import Deadlock, VirtualLoop
from headway.testing.runner import loop_factory, run

__all__ = ["Deadlock", "ManualClock", "VirtualLoop", "disabled", "loop_factory", "run", "virtual_time"]
