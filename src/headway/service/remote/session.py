"""One client process: its limiters, gates and permits; its commands, each applied once; and what it is told.

Every command has a number, counted up by the client. The answer to a number is kept until the client says that it has
it, and a number that comes again gets the same answer. So a client whose connection broke sends its batch again as it
was. Messages to the client are numbered too, and kept until they were heard.
"""

from __future__ import annotations

import asyncio
import json
import logging
import types
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headway.clock import SYSTEM
from headway.engines import base
from headway.engines.wire import error_out
from headway.errors import EngineUnavailable, HeadwayError
from headway.outcome import Outcome
from headway.service.problems import Problem
from headway.service.remote.gates import OpenedGate
from headway.service.remote.limiters import Opened, Permit

if TYPE_CHECKING:
    from headway.engines.base import Engine

_log = logging.getLogger("headway")

MOST_ANSWERS = 20_000
"""Answers that a client has not acknowledged."""
MOST_MESSAGES = 100_000
"""Messages that a client has not heard."""
KEEP_ALIVE = 5.0
"""Seconds after which a client is told that there is nothing to tell."""
LOOK_NS = 1_000_000_000
"""Nanoseconds between two looks whether held permits are still the client's."""

Handler = Callable[..., Any]


class BadCommand(HeadwayError):
    """A command that makes no sense."""


class Session:
    """What a server knows of one client process."""

    def __init__(self, engine: Engine, lease_ns: int) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self.lease_ns = lease_ns
        self.heard_at = SYSTEM.now()
        self.running = 0
        self._looked_at = 0
        self._limiters: dict[int, Opened] = {}
        self._gates: dict[int, OpenedGate] = {}
        self.permits: dict[int, Permit] = {}
        self._answers: dict[int, Any] = {}
        self._answered = 0
        # Ledgers in which permits have ended with this batch; and the looks that take that along.
        self._touched: dict[Any, tuple[Opened, base.Acquire]] = {}
        self._delivering: set[asyncio.Task[Any]] = set()
        self._messages: deque[bytes] = deque()
        self._first = self._next = 1
        self._news = asyncio.Event()
        self._stream: object = None
        self.ended = self.draining = False

    @property
    def idle(self) -> bool:
        """Whether the client has nothing here that it has to keep."""
        return not self.permits and not self._gates

    @property
    def held(self) -> int:
        """How many permits the client has that count until their end."""
        return sum(permit.decision.held for permit in self.permits.values())

    # -- commands ----------------------------------------------------------------------------------------

    async def answer(self, batch: Any) -> dict[str, Any]:
        """Apply a batch, or find that it was applied; the answers in the order of the commands."""
        self.heard_at = SYSTEM.now()
        self.running += 1
        try:
            self._tidy(batch)
            commands = batch["commands"]
            for id, verb, *words in commands:
                if id not in self._answers:
                    if id <= self._answered or len(self._answers) >= MOST_ANSWERS:
                        raise Problem("bad-request", "a number that was answered before, or too many at once")
                    self._answers[id] = self._begin(id, verb, words)
            self._deliver_ends()
            answers_to_come = [self._answers[id] for id, *_ in commands]
            pending = [found for found in answers_to_come if isinstance(found, asyncio.Future)]
            if pending or self._delivering:
                await asyncio.wait([*pending, *self._delivering])
            answers = [[id, *self._result(id)] for id, *_ in commands]
        finally:
            self.running -= 1
            self.heard_at = SYSTEM.now()
        return {"now": SYSTEM.now(), "answers": answers, "revoked": self._lost()}

    def _deliver_ends(self) -> None:
        """Have the ends of permits travel with a look at their ledger, now.

        Alone they are posted, and their answer would not wait for that: the next command could overtake them, and a
        server that is killed would have said that it has them.
        """
        for limiter, command in self._touched.values():
            look = limiter.send(base.Peek(command.keys, command.costs))
            with suppress(
                HeadwayError, StopIteration
            ):  # the engine does not answer, and delivers them later by itself
                task = asyncio.ensure_future(_outcome(begun(look)))
                self._delivering.add(task)
                task.add_done_callback(self._delivering.discard)
        self._touched.clear()

    def _result(self, id: int) -> Any:
        found = self._answers[id]
        return found.result() if isinstance(found, asyncio.Future) else found

    def _tidy(self, batch: Any) -> None:
        """Forget what the client has heard, and end the permits that it has dropped."""
        answered = int(batch["answered"])
        if answered - self._answered > MOST_ANSWERS:
            # More than there are: a loop over all of these numbers could keep the server from everything else.
            self._answers = {id: found for id, found in self._answers.items() if id > answered}
            self._answered = answered
        for id in range(self._answered + 1, answered + 1):
            self._answers.pop(id, None)
            self._answered = id
        self._forget_messages(int(batch["heard"]))
        for id in batch["forget"]:
            self.permits.pop(id, None)
        for id in batch["withdraw"]:
            self._withdraw(id)
        for id in batch["drop"]:
            self._release(id, Outcome.ABANDON, None)
        for number in batch["close"]:
            self._close(number)

    def _begin(self, id: int, verb: str, words: list[Any]) -> Any:
        """Start a command: its answer, or the task that has it in the end."""
        try:
            if verb not in VERBS:
                raise BadCommand(f"no verb {str(verb)[:40]!r}")
            handler: Handler = getattr(self, f"_{verb}")
            found = handler(id, *words) if verb in TAKING_VERBS else handler(*words)
            if not asyncio.iscoroutine(found):
                return ["ok", found]
            return asyncio.ensure_future(_outcome(found if verb in GATE_VERBS else begun(found)))
        except StopIteration as end:
            return ["ok", end.value]
        except Exception as error:  # noqa: BLE001 - told to the client
            return _refusal(error)

    # -- limiters ----------------------------------------------------------------------------------------

    def _open(self, number: int, *said: Any) -> int:
        def notify(kind: str, key: str | None, length: float) -> None:
            # The engine may call it from a thread of its own.
            self._loop.call_soon_threadsafe(self.tell, "notify", number, kind, key, length)

        found = self._limiters[number] = Opened(self._engine, list(said), notify)
        return found.declared

    def _limit(self, number: int, text: str, limits: list[Any], own: list[Any]) -> int:
        return self._limiters[number].set_limit(text, limits, own)

    def _report(self, number: int) -> None:
        self._limiters[number].ledgers.report_grants()

    def _close(self, number: int) -> None:
        limiter = self._limiters.pop(number, None)
        if limiter is not None:
            limiter.ledgers.close()

    async def _acquire(
        self, id: int, number: int, said: list[Any], costs: list[int], patience: int, longest_ns: int | None,
        brackets: bool, own: list[Any] | None,
    ) -> list[Any]:  # fmt: skip
        if self.draining:
            raise EngineUnavailable(self._engine.address, "this server is about to end")
        limiter = self._limiters[number]
        keys = limiter.keys(said, own)
        command = base.Acquire(keys, tuple(costs), base.Patience(patience), longest_ns, bool(brackets))
        return await self._permit(id, limiter, command, await limiter.send(command))

    async def _redeem(
        self, id: int, number: int, said: list[Any], costs: list[int], promise: str, own: Any
    ) -> list[Any]:
        limiter = self._limiters[number]
        keys = limiter.keys(said, own)
        found = await limiter.send(base.Redeem(keys, tuple(costs), str(promise)))
        command = base.Acquire(keys, tuple(costs), base.Patience.RESERVE)
        return await self._permit(id, limiter, command, found.decision)

    async def _permit(
        self, id: int, limiter: Opened, command: base.Acquire, decision: base.Decision
    ) -> list[Any]:
        def tell(kind: str, *facts: Any) -> None:
            self.tell(kind, id, *facts)
            if permit.over:
                self.permits.pop(id, None)

        permit = Permit(limiter, command, decision, tell)
        self.permits[id] = permit
        answer = await permit.begin()
        if self.ended:
            permit.abandon()
        if permit.over:
            self.permits.pop(id, None)
        return answer

    async def _peek(self, number: int, said: list[Any], costs: list[int], own: Any) -> list[Any]:
        limiter = self._limiters[number]
        keys = limiter.keys(said, own)
        return limiter.report(await limiter.send(base.Peek(keys, tuple(costs))), keys)

    async def _pause(self, number: int, said: list[Any], ns: int, own: Any) -> None:
        limiter = self._limiters[number]
        await limiter.send(base.Pause(limiter.keys(said, own), ns))

    async def _reset(self, number: int, said: list[Any], own: Any) -> None:
        limiter = self._limiters[number]
        await limiter.send(base.Reset(limiter.keys(said, own)))

    async def _sync(self, number: int, *said: Any) -> list[Any]:
        return await self._limiters[number].sync(*said)

    # -- permits -----------------------------------------------------------------------------------------

    def _release(self, id: int, how: int, actual: list[int] | None) -> None:
        permit = self.permits.pop(id, None)
        if permit is not None:
            permit.release(how, actual)
            self._touch(permit)

    def _enter(self, id: int) -> None:
        permit = self.permits.get(id)
        if permit is not None:
            permit.enter()

    def _withdraw(self, id: int) -> None:
        permit = self.permits.pop(id, None)
        if permit is not None:
            permit.withdraw()
            self._touch(permit)

    def _touch(self, permit: Permit) -> None:
        self._touched[id(permit.limiter), permit.command.keys] = permit.limiter, permit.command

    def _lost(self) -> list[int]:
        """Permits that are not the client's any more."""
        now = SYSTEM.now()
        if now - self._looked_at < LOOK_NS:
            return []
        self._looked_at = now
        return [id for id, permit in self.permits.items() if permit.lost]

    # -- gates -------------------------------------------------------------------------------------------

    def _gate(self, number: int, name: str, rule: list[Any], timeout_ns: int) -> None:
        self._gates[number] = OpenedGate(self._engine, name, rule, timeout_ns)

    def _submit(self, number: int, event: str, id: str, value: str | None) -> Awaitable[Any]:
        return _waited(self._gates[number].gate.submit_async(event, id, value))

    def _status(self, number: int, id: str) -> Awaitable[Any]:
        return self._gates[number].gate.status_async(id)

    def _changes(self, number: int, since: int) -> Awaitable[Any]:
        return self._gates[number].gate.changes_async(since)

    def _snapshot(self, number: int) -> Awaitable[Any]:
        return self._gates[number].gate.snapshot_async()

    def _watch(self, number: int) -> None:
        self._gates[number].watch(lambda: self.tell("gate", number))

    def _unwatch(self, number: int) -> None:
        self._gates[number].unwatch()

    def _close_gate(self, number: int) -> None:
        gate = self._gates.pop(number, None)
        if gate is not None:
            gate.close()

    # -- the session -------------------------------------------------------------------------------------

    def _ping(self) -> int:
        measure = getattr(self._engine, "round_trip_ns", None)
        return 0 if measure is None else int(measure(False))

    def _bye(self) -> None:
        self.end()

    def end(self, gone: bool = True) -> None:
        """The client has gone: what it had goes back, or is abandoned where it may have been used.

        Otherwise it is the server that goes: what is held is left to its lease, which the client may still spend.
        """
        if self.ended:
            return
        self.ended = True
        for permit in list(self.permits.values()):
            if gone or permit.queued:
                permit.abandon()
        self.permits.clear()
        for limiter in self._limiters.values():
            limiter.ledgers.close()
        for gate in self._gates.values():
            gate.close()
        self._news.set()

    def drain(self) -> None:
        """Grant nothing any more, and have those that wait ask elsewhere, or later."""
        self.draining = True
        for id, permit in list(self.permits.items()):
            if permit.queued:
                self.tell("lost", id)
                self._withdraw(id)

    # -- messages ----------------------------------------------------------------------------------------

    def tell(self, *message: Any) -> None:
        """Tell the client something, as soon as it listens."""
        if self.ended:
            return
        self._messages.append(json.dumps([self._next, *message], separators=(",", ":")).encode() + b"\n")
        self._next += 1
        self._news.set()
        if len(self._messages) > MOST_MESSAGES:
            _log.warning("a client has not listened for %d messages; its session ends", MOST_MESSAGES)
            self.end()

    def _forget_messages(self, heard: int) -> None:
        while self._messages and self._first <= heard:
            self._messages.popleft()
            self._first += 1

    async def stream(self, after: int) -> AsyncIterator[bytes]:
        """Messages after this one, as they come; ends when the client listens elsewhere, or with the session."""
        self._stream = mine = object()
        self._forget_messages(after)
        sent = max(after, self._first - 1)
        yield b"\n"
        while not self.ended and self._stream is mine:
            self._news.clear()
            if sent < self._next - 1:
                skip = max(0, sent - self._first + 1)
                parts = list(self._messages)[skip:]
                sent = self._next - 1
                yield b"".join(parts)
                continue
            try:
                async with asyncio.timeout(KEEP_ALIVE):
                    await self._news.wait()
            except TimeoutError:
                yield b"\n"


LEDGER_VERBS = ("open", "limit", "report", "close", "peek", "pause", "reset", "sync")
TAKING_VERBS = ("acquire", "redeem")
PERMIT_VERBS = ("release", "enter", "withdraw")
GATE_VERBS = ("gate", "submit", "status", "changes", "snapshot", "watch", "unwatch", "close_gate")
VERBS = frozenset((*LEDGER_VERBS, *TAKING_VERBS, *PERMIT_VERBS, *GATE_VERBS, "ping", "bye"))


def begun(work: Any) -> Any:
    """A coroutine that runs until it has to wait, now; awaiting the result goes on from there.

    So commands reach the engine in the order in which they came, and what a permit's end leaves for the next command to
    take along is taken by the next one. Raises what the coroutine raises, `StopIteration` if it has returned.
    """
    return _rest(work, work.send(None))


@types.coroutine
def _rest(work: Any, waited: Any) -> Any:
    while True:
        try:
            try:
                said = yield waited
            except BaseException as error:  # noqa: BLE001 - the coroutine's own business
                waited = work.throw(error)
            else:
                waited = work.send(said)
        except StopIteration as end:
            return end.value


async def _waited(answer: Awaitable[Any]) -> Any:
    return await answer


async def _outcome(work: Awaitable[Any]) -> list[Any]:
    try:
        return ["ok", await work]
    except Exception as error:  # noqa: BLE001 - told to the client
        return _refusal(error)


def _refusal(error: Exception) -> list[Any]:
    if not isinstance(error, HeadwayError):
        if not isinstance(error, TypeError | ValueError | LookupError | AttributeError):
            _log.exception("a command of a client failed", exc_info=error)
        error = BadCommand(f"the command was not understood: {type(error).__name__}: {error}")
    return ["error", error_out(error)]
