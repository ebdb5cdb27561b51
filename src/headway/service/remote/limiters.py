"""One limiter of a session: commands of the seam on the service's engine, and waiting done for a client.

A request that has to wait is told so at once. From then on a task of the server waits for it, as a process on the
engine would: in the ledger's queue, until a promised slot, through pauses. When the wait is over the client is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from headway.clock import SYSTEM
from headway.engines import base
from headway.engines.base import Patience, Verdict
from headway.engines.wire import ask_in, limit_in, rows_out
from headway.errors import HeadwayError
from headway.flows.drive_shared import run_async
from headway.flows.shared import Refused, acquire_flow, slot_flow
from headway.outcome import Outcome

if TYPE_CHECKING:
    from headway.core.ledger import Rule
    from headway.engines.base import Decision, Engine, Report

    Tell = Callable[..., None]

GRANTED = int(Verdict.GRANTED)
MOST_OWN = 100_000
"""Keys with limits of their own that are remembered."""
MOVED_NS = 1_000_000
"""A slot that moves by less is where it was."""


class Opened:
    """What a client calls one of its limiters, on the engine of the service."""

    def __init__(
        self, engine: Engine, said: list[Any], notify: Callable[[str, str | None, float], None]
    ) -> None:
        name, text, metrics, limits, timeout_ns, on_loss, max_quarantine_ns, ttl_ns, declared, with_status = (
            said
        )
        self.name = str(name)
        self._engine = engine
        self._own: dict[base.Keys, tuple[Rule, ...]] = {}
        self._rules = self._read(limits)
        terms = base.LimiterTerms(
            self.name,
            SYSTEM,
            str(text),
            tuple(metrics),
            self._rules,
            self._rules_for,
            int(timeout_ns),
            on_loss,
            max_quarantine_ns,
            notify,
            int(ttl_ns),
            declared,
        )
        self.ledgers = engine.open(terms)
        if with_status:
            self.ledgers.report_grants()

    def _read(self, limits: list[Any]) -> tuple[Rule, ...]:
        return tuple(rule for said in limits for rule in self._engine.rules_of(limit_in(said)))

    def _rules_for(self, keys: base.Keys) -> tuple[Rule, ...]:
        return self._own.get(keys, self._rules)

    def set_limit(self, text: str, limits: list[Any], own: list[Any]) -> int:
        """Keep other limits; when they were declared. `own`: the keys that have others than these."""
        self._rules = self._read(limits)
        self._own = {tuple(keys): self._read(others) for keys, others in own}
        self.ledgers.set_limit(text, self._rules)
        return self.declared

    @property
    def declared(self) -> int:
        return self.ledgers.declared_ns

    def keys(self, said: list[Any], own: list[Any] | None) -> base.Keys:
        """The keys of a command, whose limits are known from then on."""
        keys = tuple(said)
        if own is None:
            self._own.pop(keys, None)
        else:
            self._own[keys] = self._read(own)
            if len(self._own) > MOST_OWN:
                self._own.pop(next(iter(self._own)))
        return keys

    async def send(self, command: base.Command) -> Any:
        return await self.ledgers.send_async(command, asyncio.get_running_loop())

    # -- answers -----------------------------------------------------------------------------------------

    def report(self, report: Report, keys: base.Keys) -> list[Any]:
        limits = [rule.limit for rule in self._rules_for(keys)]
        return [rows_out(report.rows(), limits), report.reason(), report.in_doubt()]

    async def sync(
        self, said: list[Any], asks: list[Any], ttl_ns: int, predict_ns: int, own: Any
    ) -> list[Any]:
        keys = self.keys(said, own)
        found = await self.send(base.Sync(keys, tuple(map(ask_in, asks)), ttl_ns, predict_ns))
        return [self.report(found, keys), found.answers, found.paused_ns, found.quarantined_ns]


class Permit:
    """A client's permit, or its request that waits for one."""

    def __init__(self, limiter: Opened, command: base.Acquire, decision: Decision, tell: Tell) -> None:
        self.limiter = limiter
        self.command = command
        self.decision = decision
        self._tell = tell
        self._task: asyncio.Task[Any] | None = None
        self.queued = False
        self._promise: str | None = None

    async def begin(self) -> list[Any]:
        """The answer to the request."""
        patient = self.command.patience == Patience.WAIT
        if patient and not self.decision.spendable():
            self._task = asyncio.ensure_future(self._wait(self.command.longest_ns))
            for _ in range(3):  # one that cannot be granted in time is refused at once
                await asyncio.sleep(0)
            if self._task.done():
                return cast("list[Any]", self._task.result())
            self.queued = True
            return [int(Verdict.QUEUED), 0, 0, False, None, self.decision.reason(), 0.0, None, None, False]
        return self._granted() if self.decision.verdict == GRANTED else self._answer(self.decision)

    @property
    def over(self) -> bool:
        """Whether nothing is to be remembered of it: no permit was granted, and none will be."""
        return self.decision.verdict != GRANTED and not self.queued

    async def _wait(self, longest_ns: int | None) -> list[Any]:
        ledgers = self.limiter.ledgers
        deadline = None if longest_ns is None else SYSTEM.now() + longest_ns
        flow = acquire_flow(ledgers, self.limiter.name, self.command, self.decision, SYSTEM, deadline, None)
        try:
            self.decision = await run_async(flow, ledgers, SYSTEM)
        except Refused as refused:
            said = self._answer(refused.decision, refused.report)
        except HeadwayError:
            # The client asks again, and hears what is wrong.
            if not self.queued:
                raise
            self.queued = False
            self._tell("lost")
            return []
        else:
            said = self._granted()
        if self.queued:
            self.queued = False
            self._tell("told", said)
        return said

    def _granted(self) -> list[Any]:
        decision = self.decision
        decision.owned = True
        if self.command.patience == Patience.RESERVE:
            # The text as it is now stays good. Asking for it ends the care for the slot, so that begins after it.
            self._promise = decision.hand_over()
        if decision.held or decision.wait_ns():
            self.limiter.ledgers.hold(decision)
        if decision.wait_ns():
            self._task = asyncio.ensure_future(self._follow())
        return self._answer(decision)

    def _answer(self, decision: Decision, report: Report | None = None) -> list[Any]:
        now = SYSTEM.now()
        report = decision if report is None else report
        granted = decision.verdict == GRANTED
        wait_ns = decision.wait_ns() if granted else 0
        reserve = self.command.patience == Patience.RESERVE and not granted
        rows = rows_out(report.rows(), [rule.limit for rule in decision.rules]) if report.rows() else None
        return [
            int(decision.verdict),
            now + wait_ns if wait_ns else 0,
            now + decision.expires_in_ns() if granted else 0,
            decision.held,
            rows,
            decision.reason(),
            report.in_doubt(),
            decision.reserve_again_ns() if reserve else None,
            self._promise,
            decision.revoked,
        ]

    async def _follow(self) -> None:
        """Until a reserved slot has come: tell when it moves, and when it is lost."""
        decision = self.decision
        with suppress(
            HeadwayError
        ):  # its engine does not answer: the promise is kept as long as its lease lasts
            await run_async(self._noticing(SYSTEM.now() + decision.wait_ns()), self.limiter.ledgers, SYSTEM)
        if decision.revoked:
            self._tell("lost")

    def _noticing(self, slot: int) -> Generator[Any, Any, None]:
        flow = slot_flow(self.decision)
        answer: Any = None
        try:
            while True:
                effect = flow.send(answer)
                now, wait_ns = SYSTEM.now(), self.decision.wait_ns()
                if wait_ns and abs(now + wait_ns - slot) > MOVED_NS and not self.decision.revoked:
                    slot = now + wait_ns
                    self._tell("moved", slot, now + self.decision.expires_in_ns())
                answer = yield effect
        except StopIteration:
            return

    # -- ends --------------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether the ledger has given a held permit away."""
        decision = self.decision
        return (
            decision.verdict == GRANTED
            and decision.held
            and (decision.revoked or decision.expires_in_ns() < 0)
        )

    def enter(self) -> None:
        self.limiter.ledgers.enter(self.decision)

    def release(self, how: int, actual: list[int] | None) -> None:
        self._end_task()
        self.limiter.ledgers.release(self.decision, how, None if actual is None else tuple(actual))

    def withdraw(self) -> None:
        self._end_task()
        self.decision.withdraw()

    def abandon(self) -> None:
        """Its client is not there any more."""
        if self.decision.verdict != GRANTED or self.decision.wait_ns():
            self.withdraw()
        elif self.decision.held:
            self.release(Outcome.ABANDON, None)

    def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
