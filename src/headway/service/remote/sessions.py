"""All sessions of a server, by the names that their clients gave them, and the end of those not heard of for long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headway.clock import SYSTEM
from headway.engines.uri import MEMORY, open_engine
from headway.service.problems import Problem
from headway.service.remote.session import Session

if TYPE_CHECKING:
    from headway.engines.base import Engine

MOST = 10_000
"""Sessions at a time."""
LOOK = 0.25
"""Seconds between two looks at the sessions, at most."""
IDLE_NS = 60_000_000_000
"""For how long a session is kept that has nothing to keep."""
TIMEOUT = 2.0
"""Seconds that connecting to the engine may take."""
LEASES_NS = (100_000_000, 3_600_000_000_000)


class Sessions:
    """The sessions of one server."""

    def __init__(self, engine: str) -> None:
        self._uri = engine
        self._engine: Engine | None = None
        self._sessions: dict[str, Session] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._closing = self._draining = False

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def held(self) -> int:
        """How many permits clients hold."""
        return sum(session.held for session in self._sessions.values())

    async def find(self, batch: Any) -> Session:
        """The session of a batch, which may be its first; raises a `Problem`."""
        if self._closing:
            raise Problem("closing", "this server is about to end")
        name, lease_ns = batch["session"], batch["lease"]
        if not isinstance(name, str) or not 16 <= len(name) <= 64 or not isinstance(lease_ns, int):
            raise Problem("bad-request", "a session has a name of 16 to 64 characters, and a lease")
        found = self._sessions.get(name)
        if found is not None and not found.ended:
            return found
        if not batch["new"]:
            raise Problem("unknown-session", "this server does not know the session, or not any more")
        if not LEASES_NS[0] <= lease_ns <= LEASES_NS[1]:
            raise Problem("bad-request", "a lease is from 0.1 to 3600 s")
        if self._draining:
            raise Problem("closing", "this server is about to end")
        if len(self._sessions) >= MOST:
            raise Problem("too-many-sessions", f"this server has {MOST} sessions at most")
        if self._engine is None:
            self._engine = await asyncio.to_thread(self._open_engine)
        session = self._sessions.setdefault(name, Session(self._engine, lease_ns))
        if self._sweeper is None:
            self._sweeper = asyncio.ensure_future(self._sweep())
        return session

    def _open_engine(self) -> Engine:
        if self._uri == MEMORY:
            detail = "this server keeps its ledgers in memory, which it would forget with every restart: start it with"
            raise Problem("engine-unavailable", f"{detail} --engine embedded:// to use it as an engine")
        return open_engine(self._uri, TIMEOUT)

    def get(self, name: str) -> Session:
        """A session that there is; raises a `Problem`."""
        found = self._sessions.get(name)
        if found is None or found.ended:
            raise Problem("unknown-session", "this server does not know the session, or not any more")
        return found

    async def _sweep(self) -> None:
        """End the sessions of clients that were not heard of for their lease."""
        while True:
            await asyncio.sleep(LOOK)
            now = SYSTEM.now()
            for name, session in list(self._sessions.items()):
                keep_ns = max(session.lease_ns, IDLE_NS) if session.idle else session.lease_ns
                if session.ended or (not session.running and now - session.heard_at > keep_ns):
                    session.end()
                    del self._sessions[name]

    def drain(self) -> None:
        """Grant nothing any more, and end every wait; permits may still be ended."""
        self._draining = True
        for session in self._sessions.values():
            session.drain()

    async def all_ended(self) -> None:
        """Until no client holds a permit."""
        while self.held:  # noqa: ASYNC110 - for seconds, at the end
            await asyncio.sleep(LOOK / 10)

    def close(self) -> None:
        """End all of them; no client is answered any more."""
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for session in self._sessions.values():
            session.end(gone=False)
        self._sessions.clear()
