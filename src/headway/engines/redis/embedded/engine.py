"""`embedded://DIR`: an engine whose server this process may have to start, and shares with others on the machine.

How a server is started, shared, found again and ended is told in `embedded.py`; here it is an engine's. Starting
takes its time, so that the first call waits for it as long as it takes, and only after that within `engine_timeout`.

"""

from __future__ import annotations

from headway.engines.redis.address import Address
from headway.engines.redis.embedded import Tenancy
from headway.engines.redis.engine import Engine
from headway.engines.redis.place import Unreachable
from headway.engines.redis.ways import Way, connections_of

START = 10.0
"""Seconds that a server may take to start, with a long file to read."""


class EmbeddedEngine(Engine):
    """A private server on a unix socket."""

    def __init__(self, address: Address, *, timeout: float = 0.25) -> None:
        self.tenancy = Tenancy(address.directory)
        self._moved_in = False
        Engine.__init__(self, address, timeout=timeout)
        self.slow_to_prepare = True

    def _ways(self, address: Address) -> list[Way]:  # noqa: ARG002
        return [Way(*connections_of("unix"), {"path": self.tenancy.socket_path})]

    def prepare(self) -> None:
        """Be a user of a server that lives."""
        if self.keeper.stopped:
            raise Unreachable("it was closed")
        if not self._moved_in:
            self.tenancy.open(START)
            self._moved_in = True
            if self.keeper.stopped:  # nobody would leave
                self.close()  # type: ignore[unreachable] # by another thread
                raise Unreachable("it was closed")
        elif not self.tenancy.revive(self.timeout):
            raise Unreachable("it runs, but does not answer")

    def close(self) -> None:
        Engine.close(self)
        self.tenancy.close()
        self._moved_in = False
