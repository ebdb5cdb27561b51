"""`embedded://DIR`: an engine whose server this process may have to start, and shares with others on the machine.

`server.py` says how a server is started, shared, found again and ended; this is the engine around it. Starting a server
takes time: the first call waits for as long as that takes, and only then within `engine_timeout`.
"""

from __future__ import annotations

import atexit

from headway.engines.redis.embedded.server import SharedServer
from headway.engines.redis.engine import Engine, flush_at_exit
from headway.engines.redis.net.address import Address
from headway.engines.redis.net.connectors import Connector, connections_of
from headway.engines.redis.net.pool import Unreachable

START = 10.0
"""Seconds that a server may take to start, with a long file to read."""


class EmbeddedEngine(Engine):
    """A private server on a unix socket."""

    def __init__(self, address: Address, *, timeout: float = 0.25) -> None:
        self.tenancy = SharedServer(address.directory)
        self._moved_in = False
        Engine.__init__(self, address, timeout=timeout)
        self.slow_to_prepare = True

    def _connectors(self, address: Address) -> list[Connector]:  # noqa: ARG002
        return [Connector(*connections_of("unix"), {"path": self.tenancy.socket_path})]

    def prepare(self) -> None:
        """Become a user of a running server."""
        if self.worker.stopped:
            raise Unreachable("it was closed")
        if not self._moved_in:
            self.tenancy.open(START)
            self._moved_in = True
            if self.worker.stopped:  # closed meanwhile: no close would follow
                self.close()  # type: ignore[unreachable] # by another thread
                raise Unreachable("it was closed")
        elif not self.tenancy.on_unreachable(self.timeout):
            raise Unreachable("it runs, but does not answer")

    def close(self) -> None:
        Engine.close(self)
        self.tenancy.close()
        self._moved_in = False


# What was registered last runs first: releases are sent before the server is left, which may be its end.
atexit.register(flush_at_exit)
