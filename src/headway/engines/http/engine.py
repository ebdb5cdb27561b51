"""`http://` and `https://`: ledgers and gates on the engine of a service (`headway serve`), one session per process."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.clock import SYSTEM
from headway.core.limits import Limit
from headway.core.rules import check_exact, rules_of
from headway.engines import base
from headway.engines.http.channel import Channel
from headway.engines.http.gate import HttpGate
from headway.engines.http.ledgers import HttpLedgers
from headway.engines.http.requests import Request, Sample
from headway.engines.lateness import late_spacing
from headway.engines.repeated_log import RepeatedLog
from headway.engines.unused import EngineUsers
from headway.errors import EngineUnavailable
from headway.forks import on_fork, plan_at_exit

if TYPE_CHECKING:
    import asyncio

    from headway.core.ledger import Rule
    from headway.engines.http.address import Address

TICK = 1000
"""Nanoseconds: the tick of the engines that a service has."""

LATENESS_NS = 25_000_000
"""How late a waiter may be for its slot: the server wakes up for it, and then tells it."""

engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine(base.Engine):
    """A service."""

    tick_ns = TICK
    namespace = "headway"

    def __init__(self, address: Address, *, timeout: float = 0.25) -> None:
        self.where = address
        self.address = address.public
        self.lease_ns = address.lease_ns
        self.drift_ppm = address.drift_ppm
        self.drift = (address.drift_ppm + SYSTEM.drift_ppm) / 1e6
        self.timeout = timeout
        self.repeated_log = RepeatedLog(SYSTEM.now)
        self.users = EngineUsers(self)
        self.on_close: Callable[[], None] | None = None
        self._round_trip: int | None = None
        self._opened: weakref.WeakSet[HttpLedgers | HttpGate] = weakref.WeakSet()
        self.channel = Channel(self)
        engines.add(self)

    # -- limiters ----------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed, so that a new limiter needs another."""
        return self.channel.stopped

    def open(self, terms: base.LimiterTerms) -> base.Ledgers:
        ledgers = HttpLedgers(self, terms)
        self._opened.add(ledgers)
        self.users.add(ledgers)
        return ledgers

    def open_gate(self, terms: base.GateTerms) -> base.Gate:
        gate = HttpGate(self, terms)
        self._opened.add(gate)
        self.users.add(gate)
        return gate

    def rules_of(self, limit: Limit) -> tuple[Rule, ...]:
        """The rules of a limit as the service's engine has them, more or less: that one decides."""
        rules = rules_of(limit, TICK, self.drift_ppm, TICK, self.lease_ns)
        check_exact(rules)
        return rules

    def adapt(self, limit: Limit, *, measure: bool = True) -> Limit:
        """A `Spacing` whose waiters may be a little late: the way from the service to them takes time."""
        return late_spacing(limit, lambda: 2 * self.round_trip_ns(measure), self.address, LATENESS_NS)

    def round_trip_ns(self, measure: bool = True) -> int:
        """How long a command takes to the service's engine and back, as measured once; 0 where it is out of reach."""
        if self._round_trip is None:
            if not measure:
                return 0
            trips = []
            try:
                for _ in range(6):
                    request = Request(None, "ping")
                    behind = self.channel.call(request, int(self.timeout * 1e9))
                    assert request.sample is not None
                    trips.append(request.sample.received - request.sample.sent + behind)
            except EngineUnavailable as error:
                self.log_once(error)
                return 0
            # The first one had to connect.
            self._round_trip = sorted(trips[1:])[2]
        return self._round_trip

    def ping(self) -> Sample:
        """A fresh look at the server's clock."""
        request = Request(None, "ping")
        self.channel.call(request, int(self.timeout * 1e9))
        assert request.sample is not None
        return request.sample

    async def ping_async(self, loop: asyncio.AbstractEventLoop) -> Sample:
        """The same for a task."""
        request = Request(None, "ping")
        await self.channel.call_async(request, int(self.timeout * 1e9), loop)
        assert request.sample is not None
        return request.sample

    # -- the end -----------------------------------------------------------------------------------------

    def hurry(self) -> bool:
        """Deliver what is still to be delivered; whether there is something."""
        return not self.channel.flush(0)

    def stop(self) -> None:
        """Begin nothing any more: the channel ends with the engine."""

    def open_again(self) -> None:
        """A limiter is to use it that was made before the engine was closed for want of users."""
        if self.channel.stopped:
            self._renew()

    def _renew(self) -> None:
        self.channel = Channel(self)
        for opened in list(self._opened):
            opened.after_fork()

    def log_once(self, cause: BaseException) -> None:
        """Log what is wrong, once and then once a minute."""
        kind, text = f"{type(cause).__name__}: ", str(cause) or type(cause).__name__
        if isinstance(cause, EngineUnavailable):
            kind, text = "", cause.cause_text
        self.repeated_log.warning(f"engine {self.address}", text, kind)

    def close(self) -> None:
        self.channel.close()
        if self.on_close is not None:
            self.on_close()

    def after_fork(self) -> None:
        """In a forked child: the session, its connections and its threads are the parent's."""
        self.users.reset()
        self.channel.forget()
        self._renew()

    def plan_flush_at_exit(self) -> None:
        """This process has a session from now on, and says goodbye at its end."""
        plan_at_exit(flush_at_exit)

    def __reduce__(self) -> Any:
        from headway.engines.uri import open_engine

        return open_engine, (self.where.original, self.timeout)

    def __repr__(self) -> str:
        return f"<headway engine {self.address}>"


def flush_at_exit() -> None:
    """At the end of the process: deliver the releases, so that no waiter has to wait for a lease to end."""
    for engine in list(engines):
        if not engine.channel.stopped:
            engine.channel.flush(engine.timeout)
            engine.channel.close()


atexit.register(flush_at_exit)


def after_fork() -> None:
    for engine in list(engines):
        engine.after_fork()


on_fork(after_fork)
