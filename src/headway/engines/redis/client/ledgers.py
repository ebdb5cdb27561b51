"""One limiter's ledgers on a Redis engine: `base.Ledgers` in terms of requests and batchers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headway.engines import base
from headway.engines.base import Acquire as AcquireCommand
from headway.engines.base import Check
from headway.engines.redis.client.batching import loop_batcher, thread_batcher
from headway.engines.redis.client.lease_calls import SyncLeases
from headway.engines.redis.client.promises import Redeem
from headway.engines.redis.client.registry import LimiterRegistry
from headway.engines.redis.client.renewal import begin_renewals, enter, send_release
from headway.engines.redis.client.requests import (
    Acquire,
    Peek,
    PollQueue,
    Receipt,
    Request,
    receipt_of,
    taken_here,
)
from headway.engines.redis.cluster.pause import Pause
from headway.engines.redis.script.protocol import HELD, NEVER, PAUSE, RESET, TICK, numbers
from headway.errors import LimiterClosed
from headway.outcome import Outcome

if TYPE_CHECKING:
    from headway.core.ledger import Rule
    from headway.engines.redis.engine import Engine


class RedisLedgers:
    """Sends a limiter's commands to the ledgers that its registry knows."""

    __slots__ = ("__weakref__", "registry")

    def __init__(self, engine: Engine, terms: base.LimiterTerms) -> None:
        self.registry = LimiterRegistry(engine, terms)

    # -- commands ----------------------------------------------------------------------------------------

    def send(self, command: base.Command) -> Any:
        request = self._request(command)
        ledger = request.ledger
        (ledger.thread_batcher or thread_batcher(ledger)).send(request)
        return request

    async def send_async(self, command: base.Command, loop: asyncio.AbstractEventLoop) -> Any:
        request = self._request(command)
        try:
            await loop_batcher(request.ledger, loop).send(request)
        except BaseException:
            request.withdraw()
            raise
        return request

    def ask(
        self, command: base.Acquire, loop: asyncio.AbstractEventLoop, waiter: base.Waiter
    ) -> Acquire | None:
        request: Any = self._request(command)
        loop_batcher(request.ledger, loop).enqueue(request, waiter)
        return request  # type: ignore[no-any-return]

    def _request(self, command: base.Command) -> Request:
        registry = self.registry
        if isinstance(command, Check):
            return PollQueue(command.decision.ledger)  # type: ignore[attr-defined] # it is an `Acquire` of ours
        if registry.closed:
            raise LimiterClosed(registry.name)
        if isinstance(command, AcquireCommand):
            keys, costs, patience, longest_ns, brackets = command
            longest = NEVER if longest_ns is None else float(longest_ns // TICK)
            return Acquire(registry.ledger(keys), costs, patience + HELD if brackets else patience, longest)
        ledger = registry.ledger(command.keys)
        if isinstance(command, base.Peek):
            return Peek(ledger, command.costs)
        if isinstance(command, base.Sync):
            return SyncLeases(ledger, command)
        if isinstance(command, base.Redeem):
            return Redeem(ledger, command)
        # With metrics all keys share a root, where the pause of all is kept.
        alone = registry.metrics and any(key is not None for key in command.keys)
        if isinstance(command, base.Pause):
            return Pause(ledger, numbers(PAUSE, -(-command.ns // TICK), alone))
        return Request(ledger, numbers(RESET, alone))

    def receipt(self, decision: Any) -> Receipt | None:
        return receipt_of(decision)

    def decision_of(self, receipt: Receipt) -> Acquire:
        return receipt.decision()

    def release(self, decision: Any, how: int, actual: tuple[int, ...] | None = None) -> None:
        acquire: Acquire = decision
        acquire.wake_up()  # reserved, and its holder did not wait
        if not taken_here(acquire) or (acquire.ending is not None and acquire.ending.posted):
            return
        # Completing tells the ledger something only where permits are held; a cancelled one goes back in any case.
        if how == Outcome.SETTLE or ((acquire.held or how == Outcome.CANCEL) and not acquire.void):
            send_release(acquire, how, actual)

    def enter(self, decision: Any) -> bool:
        return enter(decision)

    def hold(self, decision: Any) -> None:
        acquire: Acquire = decision
        ledger = acquire.ledger
        if acquire.slot > acquire.replied_at:
            acquire.sleep()
        if ledger.leased:
            begin_renewals(acquire, ledger.leased)

    def owns(self, decision: Any) -> bool:
        return taken_here(decision)

    # -- waiters -----------------------------------------------------------------------------------------

    def begin_wait(self, decision: Any) -> None:
        self.registry.waiters.add(decision)

    def end_wait(self, decision: Any) -> None:
        self.registry.waiters.discard(decision)
        decision.wake_up()

    @property
    def waiting(self) -> int:
        return len(self.registry.waiters)

    @property
    def closed(self) -> bool:
        return self.registry.closed

    # -- the limiter -------------------------------------------------------------------------------------

    def report_grants(self) -> None:
        self.registry.with_status = True

    def known_keys(self) -> int:
        return self.registry.known()

    def set_limit(self, text: str, rules: tuple[Rule, ...]) -> None:
        self.registry.declare(text, rules)
        # A waiter may be served under the new limit, or never: its ledger is asked soon.
        for ledger in self.registry.all_clients():
            ledger.visited = 0
        self.registry.engine.worker.wake()

    @property
    def declared_ns(self) -> int:
        return int(self.registry.generation) * TICK

    def close(self) -> None:
        self.registry.close()
