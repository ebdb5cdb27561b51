"""The seam: all that front ends and flows know of where ledgers live. Commands go in, decisions come out.

A limiter opens its ledgers on an engine (`Engine.open`) and gets a `Ledgers`. It sends commands, which are values, for
a thread (`send`) or for a task (`send_async`), and gets a `Decision`. Four decisions are possible:

    GRANTED, nothing to wait for    the permit may be spent now, until it expires
    GRANTED, for a time             the permit may be spent after a wait that the engine has promised
    QUEUED                          the request stands in the ledger's queue; its waker is called when its turn comes
    DENIED                          with the status of every rule; NEVER where no amount of waiting helps

Waiting is the same for all of them. A flow asks the decision what to do next (`next_step`) and does it: wait so long,
send a check, acquire again, or spend the permit. So an engine decides how it copes with lost messages, moved slots and
clocks that drift, and a flow decides nothing but when its caller gives up.

Every time that crosses the seam is a duration in nanoseconds, rounded up by the engine: no engine's clock leaks into a
front end. Releases are posted (`release`): they never block and never raise, and an engine that cannot deliver one
lets the permit's lease run out instead.

Gates, which let an event through once (`headway.core.once`), have a smaller seam of their own: `Engine.open_gate`, and
`Gate`. The times in their answers are facts to be shown, in nanoseconds of the engine's clock since 1970. No caller
waits by them: how long a waiter sleeps is again a duration (`Gate.next_look_ns`).

A new engine implements `Engine`, `Ledgers`, `Decision` and `Gate`, gets a line in `engines/uri.py`, and passes
`tests/engines/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio

    from headway.clock import Clock
    from headway.core import lease
    from headway.core.ledger import Rule
    from headway.core.limits import Limit
    from headway.core.once import Change, EventStatus, OnceRule, Snapshot, Submission
    from headway.core.wait_queue import Waker

Keys = tuple[str | None, ...]
"""The key of every rule; a limiter without metrics has one for all of its rules."""

Row = tuple[Any, int, int, int, int, int, bool]
"""Of one rule: its limit, remaining, wait and time until reset in ns, waiting, in flight, whether the wait is exact."""


# -- commands ------------------------------------------------------------------------------------------------------


class Patience(IntEnum):
    """What a request that cannot be granted now is content with."""

    NOW = 0
    WAIT = 1
    RESERVE = 2


class Acquire(NamedTuple):
    """Take a permit: now, at a promised time, or after a place in the queue; at most `longest_ns` away.

    `brackets`: the permit brackets a call, so a `Window` may count it until its release.
    """

    keys: Keys
    costs: tuple[int, ...]
    patience: Patience
    longest_ns: int | None = None
    brackets: bool = False


class Peek(NamedTuple):
    """Report how things stand for such a request; changes nothing."""

    keys: Keys
    costs: tuple[int, ...]


class Pause(NamedTuple):
    """Grant nothing for so long: to one key, or to all where the key is None. 0 lifts the pause."""

    keys: Keys
    ns: int


class Reset(NamedTuple):
    """Let a key start anew."""

    keys: Keys


class Check(NamedTuple):
    """Ask what has become of a decision: a message may have been lost, a promise may have been withdrawn."""

    decision: Decision


class Sync(NamedTuple):
    """Keep, get and hand back the tokens of a lease: one call of a client for each rule of one key; None: no call for
    that rule.

    Spans in the calls are nanoseconds as the client tells them (`headway.core.tokens.outgoing`). A call whose answer
    was lost is sent again as it is, as another attempt under its number; the ledger hears it once.
    """

    keys: Keys
    asks: tuple[lease.Sync | None, ...]
    ttl_ns: int
    predict_ns: int


class Redeem(NamedTuple):
    """Take over a slot that was promised to another process, and that its decision handed over (`Decision.hand_over`).

    The answer's `decision` is granted, for its time. It is revoked if the ledger has begun anew since.
    """

    keys: Keys
    costs: tuple[int, ...]
    promise: str


Command = Acquire | Peek | Pause | Reset | Check | Sync | Redeem


# -- decisions -----------------------------------------------------------------------------------------------------


class Verdict(IntEnum):
    """What an engine said to `Acquire`."""

    DENIED = 0
    GRANTED = 1
    QUEUED = 2
    NEVER = 3


class Action(IntEnum):
    """What a waiter does next."""

    SPEND = 0
    WAIT = 1
    CHECK = 2
    ACQUIRE_AGAIN = 3
    GIVE_UP = 4


class Step(NamedTuple):
    """An action. A wait ends after `wait_ns`, or when the waker is called.

    No permit comes before `least_ns` have passed, so a caller whose deadline is earlier gives up at once.
    """

    action: Action
    wait_ns: int = 0
    least_ns: int = 0


class Report(Protocol):
    """How things stand: the answer to `Peek`, and a part of every decision."""

    def rows(self) -> list[Row]:
        """One row for every rule; empty where the engine did not say."""

    def reason(self) -> str:
        """Why there is no permit right now: "limit", "paused" or "quarantine"."""

    def in_doubt(self) -> float:
        """For how many seconds a loss may still matter whose quarantine was cut short."""


class Decision(Report, Protocol):
    """An engine's answer to `Acquire`, and from then on the permit's identity on that engine."""

    waker: Any
    """Called (`wake()`) when the next step may have changed. The driver of a flow sets it."""
    owned: bool
    """Whether there is a permit. A granted decision that is freed without one goes back by itself: a signal's handler
    has raised in between."""

    @property
    def verdict(self) -> int:
        """A `Verdict`."""

    @property
    def costs(self) -> tuple[int, ...]:
        """What was asked for, of every rule."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that decided."""

    @property
    def held(self) -> bool:
        """Whether the permit has to be ended: one of its rules counts it until then."""

    @property
    def revoked(self) -> bool:
        """Whether the permit is the ledger's again: it was lost, recalled or expired."""

    def spendable(self) -> bool:
        """Whether the permit may be spent right now."""

    def next_step(self) -> Step:
        """What to do until the permit may be spent."""

    def wait_ns(self) -> int:
        """How long until a granted permit may be spent; 0 when its time has come."""

    def expires_in_ns(self) -> int:
        """How long a granted permit may still be spent; below 0 it has expired."""

    def flight_ns(self) -> int:
        """How long ago the permit could be spent for the first time."""

    def late_ns(self) -> int:
        """How long ago the time of a granted permit came, at most; below 0: it has not come yet."""

    def hand_over(self) -> str:
        """A promised slot as a text that another process redeems (`Redeem`); this one does not look after it any more.
        It says what only the engine reads."""

    def reserve_again_ns(self) -> int | None:
        """After a denied reservation: when a slot can be reserved again, where that is known."""

    def drop(self) -> None:
        """The permit was dropped without an end. Called by a finalizer: it must not block, lock or send."""

    def withdraw(self) -> None:
        """The caller has gone: a place in the queue and whatever was granted go back. Never blocks, never raises."""


class Synced(Report, Protocol):
    """An engine's answer to `Sync`; its rows are what is known of the whole limit, without what clients hold."""

    @property
    def answers(self) -> tuple[lease.Answer | None, ...]:
        """One for each rule, in nanoseconds as the ledger tells them (`headway.core.tokens.outgoing`, `Answer.ttl` and
        `again` by its own clock). None: that rule had no call, or a later one was heard before."""

    @property
    def sent_ns(self) -> int:
        """When the command was sent for the first time, by this process's clock. An answer whose `attempt` is this
        call's counts from then; of an earlier attempt, from when that one was sent."""

    @property
    def paused_ns(self) -> int:
        """For how long a pause of this key, or of the whole limiter, still lasts; 0: none does."""

    @property
    def quarantined_ns(self) -> int:
        """For how long a quarantine still lasts; 0: none does."""


# -- engines -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LimiterTerms:
    """What a limiter tells the engine when it opens its ledgers."""

    name: str
    clock: Clock
    text: str
    """The limits, as a person reads them."""
    metrics: tuple[str | None, ...]
    """The metric of every rule; None where the limiter has none."""
    rules: tuple[Rule, ...]
    rules_for: Callable[[Keys], tuple[Rule, ...]] | None
    """The rules of a key, where single keys have limits of their own."""
    timeout_ns: int
    on_loss: str
    max_quarantine_ns: int | None
    notify: Callable[[str, str | None, float], None]
    """Told (kind, key, seconds) of a quarantine."""
    lease_ttl_ns: int = 0
    """The longest time for which its clients hold tokens without a word; 0: they hold none."""
    declared_ns: int | None = None
    """When these limits were declared, where that was before now: of several limits of one name the last one governs.
    By a wall clock, as `Ledgers.declared_ns` said it."""


class Waiter(Protocol):
    """Waits for a decision: the part of `asyncio.Future` that an engine needs. It is told in the event loop, maybe
    before `ask` has returned, and never raises."""

    def cancelled(self) -> bool:
        """Whether the answer is not wanted any more."""

    def done(self) -> bool:
        """Whether it was told, or is cancelled."""

    def set_result(self, result: None, /) -> None:
        """The decision is there."""

    def set_exception(self, error: BaseException, /) -> None:
        """There will be none, and what it took is undone."""

    def exception(self) -> BaseException | None:
        """What it was told last."""


class Ledgers(Protocol):
    """One limiter's ledgers on an engine."""

    def send(self, command: Command) -> Any:
        """Carry a command out for this thread: a `Decision` for `Acquire`, a `Report` for `Peek`, a
        `Synced` for `Sync`.

        Raises `EngineUnavailable` when the engine does not answer in time; whatever it raises, the command's effects
        are undone.
        """

    async def send_async(self, command: Command, loop: asyncio.AbstractEventLoop) -> Any:
        """The same for a task of this running event loop."""

    def ask(self, command: Acquire, loop: asyncio.AbstractEventLoop, waiter: Waiter) -> Decision | None:
        """The same for what is no task: the decision at once, to be read when its waiter is told. Where the caller goes
        before that, it withdraws the decision. None: this engine has tasks alone, and nothing was sent."""

    def receipt(self, decision: Decision) -> object | None:
        """A small value for a permit that was spent and may be given back much later: the decision itself is kept no
        longer. None: it has to be, as it is held or this engine has no receipts."""

    def decision_of(self, receipt: Any) -> Decision:
        """The decision that a receipt of this engine is of, to be released."""

    def release(self, decision: Decision, how: int, actual: tuple[int, ...] | None = None) -> None:
        """End a permit, once: a second call changes nothing. Never blocks, never raises."""

    def hold(self, decision: Decision) -> None:
        """A held or reserved permit is in use from now on: the engine renews it, or its promise, until its release."""

    def enter(self, decision: Decision) -> bool:
        """A permit that was taken bare brackets a call after all. Whether it counts until its release from now on.

        Like a release it is posted: it never blocks and never raises.
        """

    def owns(self, decision: Decision) -> bool:
        """Whether this process took the permit. A forked child has copies of its parent's."""

    def begin_wait(self, decision: Decision) -> None:
        """A caller waits for this decision: it is counted, and closing the ledgers ends its wait."""

    def end_wait(self, decision: Decision) -> None:
        """The caller does not wait any more."""

    @property
    def waiting(self) -> int:
        """How many callers of this process wait."""

    @property
    def closed(self) -> bool:
        """Whether nothing is granted any more."""

    def report_grants(self) -> None:
        """The status of permits is read: granted decisions have rows from now on, without another round trip."""

    def known_keys(self) -> int:
        """How many keys have ledgers, as far as this process knows."""

    def set_limit(self, text: str, rules: tuple[Rule, ...]) -> None:
        """Keep other rules of the same kinds from now on."""

    @property
    def declared_ns(self) -> int:
        """When its limits were declared, for a client that opens the limiter again (`LimiterTerms.declared_ns`)."""

    def close(self) -> None:
        """End every wait with `LimiterClosed`."""


# -- gates ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GateTerms:
    """What a gate is opened with; `rule` is in nanoseconds. `name` is None for a gate of its own in memory."""

    name: str | None
    clock: Clock
    rule: OnceRule
    timeout_ns: int


class GateLog(NamedTuple):
    """A part of a gate's log. `began` tells one gate from another that has taken its name after it was forgotten.

    `changes` is None where some lines after the value that was asked for are not kept any more; all after `oldest`
    are. It may end before `clock`: then the rest is asked for next. Where `run` is another one than before, the engine
    may have forgotten the last lines, and have written others in their place.
    """

    began: int
    clock: int
    oldest: int
    changes: list[Change] | None
    run: int = 0


class GateView(NamedTuple):
    """A snapshot, and when its gate began."""

    began: int
    snapshot: Snapshot


class Gate(Protocol):
    """One gate on an engine, as one front end has it.

    Every command lets time act first: what is due is published by whatever process looks next. A command may be
    sent twice without harm, as a submission has an id. Raises `EngineUnavailable` when the engine does not answer, and
    `LimitMismatch` where the gate of this name has another duration or mode.
    """

    def submit(self, event: str, id: str, value: str | None) -> Submission:
        """An event comes. Raises `GateFull` and `IdReused`, and has changed nothing then."""

    def submit_async(self, event: str, id: str, value: str | None) -> Awaitable[Submission]: ...

    def status(self, id: str) -> EventStatus | None:
        """What became of a submission; None if it is not known (any more)."""

    async def status_async(self, id: str) -> EventStatus | None: ...

    def changes(self, since: int) -> GateLog:
        """What happened after clock `since`, or the first part of it."""

    async def changes_async(self, since: int) -> GateLog: ...

    def snapshot(self) -> GateView:
        """What is pending, and the clock to which that belongs."""

    async def snapshot_async(self) -> GateView: ...

    # -- waiting

    def watch(self, waker: Waker) -> None:
        """Wake this one whenever the clock of the gate may have moved, until `unwatch`."""

    def unwatch(self, waker: Waker) -> None:
        """Not any more. One that is not watching is no error: a fork may have come in between."""

    def news(self, since: int) -> GateLog | None:
        """What a watcher can be told without a word to the engine; None: it has to send `changes`."""

    def next_look_ns(self) -> int | None:
        """After how long a watcher looks again although it was not woken; None: it need not."""

    def close(self) -> None:
        """This front end has no more use for it."""


class Engine(ABC):
    """A shared place for ledgers, as a URI or `redis_engine` names it: for `engine=`, and for type annotations.

    >>> import redis
    >>> from headway import Engine, redis_engine
    >>> engine: Engine = redis_engine(redis.Redis(host="db"), namespace="shop")
    >>> engine.address, engine.namespace
    ('redis-py client to db:6379', 'shop')
    >>> engine.close()

    Limiters that name the same URI, or the same client, share one engine. It is opened by the first command.
    """

    address: str
    """Where it is, without passwords."""
    namespace: str
    """What the names of all its keys begin with."""
    tick_ns: int
    """The resolution of its clock: its rules reckon in these."""
    drift_ppm: float
    """By how much a second of its clock may differ from a true one."""

    @abstractmethod
    def rules_of(self, limit: Limit) -> tuple[Rule, ...]:
        """The rules of a limit by this engine's clock."""

    @abstractmethod
    def adapt(self, limit: Limit, *, measure: bool = True) -> Limit:
        """A limit as it can be kept from a distance; `measure` allows a round trip to find that out."""

    @abstractmethod
    def open(self, terms: LimiterTerms) -> Ledgers:
        """A limiter's ledgers."""

    @abstractmethod
    def open_gate(self, terms: GateTerms) -> Gate:
        """A gate of events."""

    @abstractmethod
    def close(self) -> None:
        """End its connections and threads, when no limiter uses it any more."""
