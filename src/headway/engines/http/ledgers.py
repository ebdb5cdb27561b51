"""One limiter's ledgers on a service: `base.Ledgers` in terms of commands on a channel."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.clock import SYSTEM
from headway.engines import base
from headway.engines.http.decision import RemoteDecision, RemoteReport, RemoteSynced, taken_here
from headway.engines.http.requests import AcquireRequest, Request
from headway.engines.weak_methods import weak_method
from headway.engines.wire import limit_out
from headway.errors import LimiterClosed
from headway.outcome import Outcome

if TYPE_CHECKING:
    from headway.core.ledger import Rule
    from headway.engines.http.engine import Engine

IDLE_NS = 3_600_000_000_000
"""After how long without use a key is not counted any more."""

_numbers = itertools.count(1)


class HttpLedgers:
    """Sends a limiter's commands to the service."""

    def __init__(self, engine: Engine, terms: base.LimiterTerms) -> None:
        self.engine = engine
        # Without keeping the limiter alive, which has this.
        rules_for = None if terms.rules_for is None else weak_method(terms.rules_for)
        self.terms = replace(terms, notify=weak_method(terms.notify), rules_for=rules_for)
        self.number = next(_numbers)
        self.opened = 0
        self.text = terms.text
        self.rules = terms.rules
        # When the server heard of these limits, by its wall clock; None: it has not.
        self.declared = terms.declared_ns
        self.with_status = False
        self.closed = False
        self._waiters: set[RemoteDecision] = set()
        # Keys and when each was used last.
        self._keys: dict[base.Keys, int] = {}
        self._most = 1000

    # -- what opens it -----------------------------------------------------------------------------------

    def opening(self) -> list[Any]:
        terms = self.terms
        self.engine.channel.ledgers[self.number] = self
        return [
            "open", self.number, terms.name, self.text, terms.metrics, _limits_out(self.rules), terms.timeout_ns,
            terms.on_loss, terms.max_quarantine_ns, terms.lease_ttl_ns, self.declared, self.with_status,
        ]  # fmt: skip

    def apply_opening(self, answer: Any) -> None:
        self.declared = answer

    def notify(self, kind: str, key: str | None, length: float) -> None:
        """The engine of the service tells of a quarantine."""
        self.terms.notify(kind, key, length)

    # -- commands ----------------------------------------------------------------------------------------

    def send(self, command: base.Command) -> Any:
        if isinstance(command, base.Check):
            return self._checked(command, self.engine.ping())
        request, decision = self._request(command)
        said = self.engine.channel.call(request, self.terms.timeout_ns)
        return self._result(command, request, decision, said)

    async def send_async(self, command: base.Command, loop: asyncio.AbstractEventLoop) -> Any:
        if isinstance(command, base.Check):
            return self._checked(command, await self.engine.ping_async(loop))
        request, decision = self._request(command)
        said = await self.engine.channel.call_async(request, self.terms.timeout_ns, loop)
        return self._result(command, request, decision, said)

    def _request(self, command: Any) -> tuple[Request, RemoteDecision | None]:
        if self.closed:
            raise LimiterClosed(self.terms.name)
        keys = command.keys
        rules, own = self._rules_of(keys)
        self._use(keys)
        if isinstance(command, base.Acquire):
            decision = RemoteDecision(self, rules, command.costs)
            words = (keys, command.costs, command.patience, command.longest_ns, command.brackets, own)
            return AcquireRequest(self, decision, "acquire", *words), decision
        if isinstance(command, base.Redeem):
            decision = RemoteDecision(self, rules, command.costs)
            said = (keys, command.costs, command.promise, own)
            return AcquireRequest(self, decision, "redeem", *said), decision
        match command:
            case base.Peek():
                return Request(self, "peek", keys, command.costs, own), None
            case base.Pause():
                return Request(self, "pause", keys, command.ns, own), None
            case base.Reset():
                return Request(self, "reset", keys, own), None
            case base.Sync():
                spans = command.ttl_ns, command.predict_ns
                return Request(self, "sync", keys, command.asks, *spans, own), None
        raise TypeError(f"no command: {command!r}")

    def _result(self, command: Any, request: Request, decision: RemoteDecision | None, said: Any) -> Any:
        if decision is not None:
            if decision.verdict == base.Verdict.QUEUED or decision.wait_ns() or decision.held:
                self.engine.channel.listen()
            return Redeemed(decision) if isinstance(command, base.Redeem) else decision
        limits = [rule.limit for rule in self._rules_of(command.keys)[0]]
        if isinstance(command, base.Peek):
            return RemoteReport(said, limits)
        if isinstance(command, base.Sync):
            return RemoteSynced(said, limits, request.first_sent)
        return None

    def _checked(self, command: base.Check, sample: Any) -> None:
        decision: Any = command.decision
        decision.reckon(sample)

    def _rules_of(self, keys: base.Keys) -> tuple[tuple[Rule, ...], list[Any] | None]:
        """The rules of a key; and how they are said to the server, where they are not the limiter's."""
        rules_for = self.terms.rules_for
        if rules_for is None:
            return self.rules, None
        rules = rules_for(keys) or self.rules
        if all(own is common for own, common in zip(rules, self.rules, strict=True)):
            return rules, None
        return rules, _limits_out(rules)

    def _overridden(self) -> list[Any]:
        """The keys that the server may know, and that have limits of their own."""
        if self.terms.rules_for is None:
            return []
        pairs = ((keys, self._rules_of(keys)[1]) for keys in list(self._keys))
        return [[keys, own] for keys, own in pairs if own is not None]

    def _use(self, keys: base.Keys) -> None:
        now = SYSTEM.now()
        self._keys[keys] = now
        if len(self._keys) > self._most:
            for known, at in list(self._keys.items()):
                if now - at > IDLE_NS:
                    self._keys.pop(known, None)
            self._most = max(1000, 2 * len(self._keys))

    def ask(self, command: base.Acquire, loop: asyncio.AbstractEventLoop, waiter: base.Waiter) -> None:
        """Its commands are answered to tasks and threads."""

    # -- permits -----------------------------------------------------------------------------------------

    def receipt(self, decision: base.Decision) -> None:
        """A decision is small here."""

    def decision_of(self, receipt: Any) -> base.Decision:
        raise TypeError(f"{receipt!r} is no receipt of this engine")

    def release(self, decision: Any, how: int, actual: tuple[int, ...] | None = None) -> None:
        permit: RemoteDecision = decision
        # Completing tells the ledger something only where permits are held; a cancelled one goes back in any case.
        if how == Outcome.SETTLE or ((permit.held or how == Outcome.CANCEL) and not permit.void):
            permit.end(how, actual)

    def enter(self, decision: Any) -> bool:
        entered: bool = decision.enter()
        return entered

    def hold(self, decision: Any) -> None:
        """The server renews what is held, from the grant on."""

    def owns(self, decision: Any) -> bool:
        return taken_here(decision)

    # -- waiters -----------------------------------------------------------------------------------------

    def begin_wait(self, decision: Any) -> None:
        self._waiters.add(decision)

    def end_wait(self, decision: Any) -> None:
        self._waiters.discard(decision)

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def after_fork(self) -> None:
        """In a forked child: the waiters are the parent's."""
        self._waiters.clear()
        self.opened = 0

    # -- the limiter -------------------------------------------------------------------------------------

    def report_grants(self) -> None:
        if not self.with_status:
            self.with_status = True
            self.engine.channel.post(Request(self, "report"))

    def known_keys(self) -> int:
        return len(self._keys)

    def set_limit(self, text: str, rules: tuple[Rule, ...]) -> None:
        self.text, self.rules = text, rules
        self.declared = None
        if self.opened:
            self.engine.channel.post(Declare(self, "limit", text, _limits_out(rules), self._overridden()))

    @property
    def declared_ns(self) -> int:
        return 0 if self.declared is None else self.declared

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for decision in list(self._waiters):
            decision.withdraw()
            decision.void = True
            decision.wake()
        if self.opened == self.engine.channel.number:
            self.engine.channel.post(Request(self, "close"))

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and self.opened:
            self.engine.channel.unopened.append((self.opened, self.number))


class Redeemed(NamedTuple):
    """The answer to `base.Redeem`."""

    decision: RemoteDecision


class Declare(Request):
    """Declares another limit."""

    __slots__ = ()

    def apply(self, answer: Any, sample: Any) -> None:  # noqa: ARG002
        assert self.target is not None
        self.target.apply_opening(answer)


def _limits_out(rules: tuple[Rule, ...]) -> list[Any]:
    return [limit_out(rule.limit) for rule in rules]
