"""`Limiter`: a limit, the ledgers that keep it, and the verbs to ask for permits.

The verbs that are called for every request are inherited from `headway.limiter.local`; here is what happens once or
rarely: construction, looking, reserving, pausing, changing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headway.clock import Clock, as_clock
from headway.core.durations import span_of
from headway.core.ledger import Rule
from headway.core.limits import Limit
from headway.core.remote import Remote
from headway.core.rules import rules_of
from headway.core.wait_queue import Ticket
from headway.engines.memory import MemoryStore, open_store
from headway.errors import (
    InvalidArgument,
    InvalidKey,
    LimiterClosed,
    LimitMismatch,
    NotPromised,
    RateLimited,
)
from headway.events import EventEmitter, LimiterEvent
from headway.limiter.hold import Hold
from headway.limiter.limit_input import Limits, as_remote, metrics_of
from headway.limiter.local import Cost, Key, LocalLimiter, Timeout, timeout_to_ns
from headway.status import LimiterStats, Status, status_of

if TYPE_CHECKING:
    from headway.limiter.permits import Permit
    from headway.outcome import Proof

_F = TypeVar("_F", bound=Callable[..., Any])

_SHARED_NAMES = ("on_engine_error", "engine_timeout", "local_share", "on_ledger_loss", "max_quarantine")
_SHARED_ONLY: tuple[object, ...] = ("closed", 0.25, 0.1, "quarantine", 60)
"""What only means something on a shared engine, and its defaults."""

Overrides = Mapping[str, Limits] | Callable[[str], Limits | None]


def _text_of(names: Sequence[str | None], rules: Sequence[Rule]) -> str:
    """Limits for people to compare, each with its metric."""
    parts = zip(names, rules, strict=True)
    return "; ".join(f"{name}: {rule.limit}" if name else str(rule.limit) for name, rule in parts)


class Limiter(LocalLimiter):
    """Keeps a limit: ask it before each call.

    >>> limiter = Limiter("100/minute")
    >>> with limiter:                                   # waits for a permit
    ...     answer = "call the API here"
    >>> bool(limiter.try_acquire("alice"))              # one ledger for each key; never waits
    True
    >>> limiter.peek("alice").remaining
    99

    `limit` is a string, a limit, or a mapping from metrics to them; `overrides` gives single keys another one.
    `remote` (True, or a `Remote`) makes every `Window` count as the remote does. `timeout` and `max_waiting`
    bound waiting; `start="full"` begins as if everything had just been used; `on_event` is told what happens.
    """

    __slots__ = ("__weakref__", "_limits", "_overrides", "_remote", "_rules")

    def __init__(
        self,
        limit: Limits,
        *,
        name: str | None = None,
        engine: Any = "memory://",  # noqa: ARG002 - `__new__` has looked at it
        remote: Remote | bool | None = None,
        overrides: Overrides | None = None,
        timeout: float | timedelta | None = None,
        max_waiting: int | None = None,
        start: Literal["idle", "full"] = "idle",
        on_engine_error: Literal["closed", "open", "local"] = "closed",
        engine_timeout: float | timedelta = 0.25,
        local_share: float = 0.1,
        on_ledger_loss: Literal["quarantine", "trust"] = "quarantine",
        max_quarantine: float | timedelta | None = 60,
        on_event: Callable[[LimiterEvent], object] | None = None,
        clock: Clock | Any = None,
    ) -> None:
        shared: tuple[object, ...] = (
            on_engine_error,
            engine_timeout,
            local_share,
            on_ledger_loss,
            max_quarantine,
        )
        if shared != _SHARED_ONLY:
            given = zip(_SHARED_NAMES, shared, _SHARED_ONLY, strict=True)
            raise InvalidArgument(
                "options",
                {option: value for option, value, default in given if value != default},
                "them with a shared engine, such as engine='redis://...': memory:// is always there, and remembers",
            )
        if start not in ("idle", "full"):
            raise InvalidArgument("start", start, "'idle' or 'full'")
        self._check_common(max_waiting, on_event)
        if name is not None and not isinstance(name, str):
            raise InvalidArgument("name", name, "a str, or None")
        timeout_ns = timeout_to_ns(timeout)
        source = as_clock(clock)
        self._remote = as_remote(remote)
        self._limits = metrics_of(limit, self._remote)
        self._overrides = overrides
        self._rules: dict[Limit, tuple[Rule, ...]] = {}
        self._check_overrides(overrides, source)
        store = open_store(name, source, start_full=start == "full")
        self._install(store, source)
        listener = None if on_event is None else EventEmitter(on_event, name, source)
        LocalLimiter.__init__(self, store, timeout_ns, max_waiting, listener)

    # -- construction ------------------------------------------------------------------------------------

    def __new__(cls, *args: Any, engine: Any = "memory://", **options: Any) -> Limiter:  # noqa: ARG004
        if cls is Limiter and engine != "memory://":
            # Ledgers elsewhere are asked in another way: the same verbs, in a module that needs more to be imported.
            try:
                from headway.limiter.shared import SharedLimiter
            except ModuleNotFoundError as error:
                if error.name not in ("redis", "hiredis"):
                    raise
                accepted = "it with redis-py installed: pip install 'headway[redis]'"
                # Nobody has read it yet, and there may be a password in it.
                shown = (
                    f"{engine.partition('://')[0]}://..."
                    if isinstance(engine, str)
                    else type(engine).__name__
                )
                raise InvalidArgument("engine", shown, accepted) from None
            return LocalLimiter.__new__(SharedLimiter)
        return LocalLimiter.__new__(cls)

    @staticmethod
    def _check_common(max_waiting: Any, on_event: Any) -> None:
        if max_waiting is not None and (type(max_waiting) is not int or max_waiting < 0):
            raise InvalidArgument("max_waiting", max_waiting, "an integer from 0 up, or None")
        if on_event is not None and not callable(on_event):
            raise InvalidArgument("on_event", on_event, "a function of one event, or None")

    def _check_overrides(self, overrides: Any, clock: Clock) -> None:
        if isinstance(overrides, Mapping):
            for key, own in overrides.items():
                if type(key) is not str:
                    raise InvalidArgument("overrides", {key: own}, "limits for keys that are a str")
                self._checked_override(key, own, clock)
        elif overrides is not None and not callable(overrides):
            raise InvalidArgument(
                "overrides", overrides, "a mapping from keys to limits, or a function of the key"
            )

    def _install(self, store: MemoryStore, clock: Clock) -> None:
        """Configure a new store, or go on with one that another limiter of this name uses already."""
        rules = self._flat_rules(self._limits, clock)
        names = [name for name, limit in self._limits.items() for _ in self._rules_of(limit, clock)]
        if not store.keyed_ledgers:
            choosers = [self._chooser(i, names, clock) for i in range(len(rules))]
            store.metrics = [name or None for name in names]
            store.configure(rules, choosers)
            store.limits = self._limits
        else:
            self._compare(store, rules, names)
            overridden = self._overrides is not None
            choosers = [self._chooser(i, names, clock) for i in range(len(rules))]
            store.reconfigure(rules, self._limits, choosers if overridden else None)
        store.users += 1

    def _compare(self, store: MemoryStore, rules: tuple[Rule, ...], names: list[str]) -> None:
        before = [
            (name, type(keyed.rule)) for name, keyed in zip(store.metrics, store.keyed_ledgers, strict=True)
        ]
        if before != [(name or None, type(rule)) for name, rule in zip(names, rules, strict=True)]:
            existing = _text_of(store.metrics, [keyed.rule for keyed in store.keyed_ledgers])
            raise LimitMismatch(store.name, existing, _text_of(names, rules))

    def _rules_of(self, limit: Limit, clock: Clock) -> tuple[Rule, ...]:
        if limit not in self._rules:
            if len(self._rules) > 10_000:
                self._rules.clear()
            # A clock that claims no ticks is still read in whole nanoseconds.
            resolution_ns = max(1, -(-int(clock.resolution * 1e12) // 1000))
            self._rules[limit] = rules_of(limit, resolution_ns, clock.drift_ppm)
        return self._rules[limit]

    def _flat_rules(self, limits: dict[str, Limit], clock: Clock) -> tuple[Rule, ...]:
        return tuple(rule for limit in limits.values() for rule in self._rules_of(limit, clock))

    def _own_limits(self, limit: Limits) -> dict[str, Limit]:
        """What an override says."""
        return metrics_of(limit, self._remote)

    def _checked_override(self, key: str, limit: Limits, clock: Clock) -> tuple[Rule, ...]:
        own = self._own_limits(limit)
        limits = {**self._limits, **own}
        rules = self._flat_rules(limits, clock)
        if set(own) - set(self._limits) or len(rules) != len(self._flat_rules(self._limits, clock)):
            raise InvalidArgument(
                "overrides",
                {key: limit},
                "limits of the same metrics and number of parts as the limiter's own",
            )
        return rules

    def _chooser(self, index: int, names: list[str], clock: Clock) -> Callable[[str], Rule | None] | None:
        overrides = self._overrides
        if overrides is None:
            return None
        find = overrides if callable(overrides) else overrides.get

        def choose(key: str) -> Rule | None:
            limit = find(key)
            if limit is None or (isinstance(limit, Mapping) and names[index] not in limit):
                return None
            return self._checked_override(key, limit, clock)[index]

        return choose

    @property
    def limit(self) -> Limit | dict[str, Limit]:
        """The limit it keeps, or one for each metric.

        >>> Limiter("100/minute").limit
        Window(100, per=60)
        """
        limits: dict[str, Limit] = self._store.limits
        return limits[""] if "" in limits else dict(limits)

    @property
    def name(self) -> str | None:
        """The name of its ledgers."""
        return self._store.name

    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        limit = self.limit
        text = (
            str(limit) if isinstance(limit, Limit) else {metric: str(part) for metric, part in limit.items()}
        )
        return f"Limiter({text!r}{name})"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a limiter on memory:// cannot be pickled: the copy would keep a limit of its own; "
            "build it where it is used, at module level for instance"
        )

    # -- rarer verbs -------------------------------------------------------------------------------------

    def hold(
        self,
        key: Key = None,
        *,
        cost: Cost = 1,
        timeout: Timeout = ...,
        answered: Proof = None,
        not_sent: Proof = None,
    ) -> Hold:
        """`with` and `async with` around a call: takes a permit, and ends it by how the block ended.

        >>> with Limiter("5 concurrent").hold("alice") as permit:
        ...     permit.key
        'alice'
        """
        return Hold(self, key, cost, timeout, answered, not_sent)

    def reserve(self, key: Key = None, *, cost: Cost = 1) -> Permit:
        """A permit for a promised time: its `delay` says how long, its `wait()` waits.

        Only where a time can be promised (`Bucket`, `Spacing`). Those who wait already are promised theirs
        first.

        >>> limiter = Limiter("10/s burst 1")
        >>> limiter.reserve().delay
        0.0
        >>> 0.09 < limiter.reserve().delay <= 0.1
        True
        """
        keys, costs = self.request(key, cost)
        store = self._store
        for keyed, own_key in zip(store.keyed_ledgers, keys, strict=True):
            rule = keyed.rule_for(own_key)
            if not rule.promises:
                raise NotPromised(rule.limit)
            if rule.capacity == 0:
                raise RateLimited(float("inf"), limit=rule.limit, key=keys[0], reason="never")
        ticket = Ticket(keys, costs, self)
        try:
            slot = store.reserve(ticket)
        except BaseException:
            store.withdraw(ticket)
            raise
        if slot < 0:
            store.counts.denied += 1
            retry_after = store.slot_after(ticket) / 1e9
            raise RateLimited(
                retry_after,
                limit=store.keyed_ledgers[0].rule.limit,
                key=keys[0],
                status=self.peek(key, cost=cost),
            )
        permit = self.permit_for(ticket)
        permit.promise(slot)
        if self._listener is not None:
            self._listener.emit("granted", key, cost)
        return permit

    def peek(self, key: Key = None, *, cost: Cost = 1) -> Status:
        """How things stand for such a request; consumes nothing.

        >>> Limiter("100/minute").peek().remaining
        100
        """
        self._check_open()
        return status_of(self._store.snapshot(*self.request(key, cost)))

    def _check_open(self) -> None:
        if self._closed:
            raise LimiterClosed(self.name)

    def pause(self, seconds: float | timedelta, key: str | None = None) -> None:
        """Grant nothing for so long (a 429 with `Retry-After` came back); the longest pause holds, and 0 lifts it.

        >>> limiter = Limiter("100/minute")
        >>> limiter.pause(30)
        >>> limiter.try_acquire().reason
        'paused'
        """
        ns = span_of(seconds)
        if ns is None or not 0 <= ns < 1 << 62:
            raise InvalidArgument("seconds", seconds, "seconds from 0 up, or a timedelta; 0 lifts the pause")
        if key is not None and not isinstance(key, str):
            raise InvalidKey(key, costs=False)
        self._check_open()
        self._store.pause(None if key is None else str.__str__(key), ns)
        if self._listener is not None:
            self._listener.emit("paused", key, None, ns / 1e9)

    def set_limit(self, limit: Limits) -> None:
        """Keep another limit of the same kind from now on; what was used stays used.

        >>> limiter = Limiter("100/minute")
        >>> limiter.set_limit("200/minute")
        >>> limiter.peek().remaining
        200
        """
        clock = self._store.clock
        limits = metrics_of(limit, self._remote)
        rules = self._flat_rules(limits, clock)
        names = [name for name, part in limits.items() for _ in self._rules_of(part, clock)]
        self._compare(self._store, rules, names)
        self._check_open()
        self._store.reconfigure(rules, limits)

    def reset(self, key: Key = None) -> None:
        """Let a key start anew, as if nothing had been used.

        >>> limiter = Limiter("1/minute")
        >>> _ = limiter.acquire()
        >>> limiter.reset()
        >>> bool(limiter.try_acquire())
        True
        """
        self._check_open()
        self._store.reset(self._keys(key, self._store.metrics, costs=False))

    def stats(self) -> LimiterStats:
        """What was granted, denied and ended so far, and how many keys are remembered.

        >>> limiter = Limiter("1/minute")
        >>> _ = limiter.try_acquire("alice"), limiter.try_acquire("alice")
        >>> limiter.stats().granted, limiter.stats().denied, limiter.stats().keys
        (1, 1, 1)
        """
        store, counts = self._store, self._store.counts
        return LimiterStats(
            granted=counts.granted,
            denied=counts.denied,
            waiting=len(store.queues.waiters),
            completed=counts.ended - counts.abandoned,
            cancelled=counts.cancelled,
            abandoned=counts.abandoned,
            keys=sum(len(keyed.ledgers) for keyed in store.keyed_ledgers),
        )

    def close(self) -> None:
        """End every wait of this limiter with `LimiterClosed`, and grant nothing any more.

        Other limiters of the same name go on.

        >>> limiter = Limiter("1/minute")
        >>> limiter.close()
        >>> limiter.try_acquire()
        Traceback (most recent call last):
        headway.errors.LimiterClosed: the limiter is closed
        """
        if not self._closed:
            self._closed = True
            self._plain = False
            self._store.close(self)

    async def reserve_async(self, key: Key = None, *, cost: Cost = 1) -> Permit:
        """`reserve` for a task."""
        return self.reserve(key, cost=cost)

    async def peek_async(self, key: Key = None, *, cost: Cost = 1) -> Status:
        """`peek` for a task."""
        return self.peek(key, cost=cost)

    async def pause_async(self, seconds: float | timedelta, key: str | None = None) -> None:
        """`pause` for a task."""
        self.pause(seconds, key)

    async def set_limit_async(self, limit: Limits) -> None:
        """`set_limit` for a task."""
        self.set_limit(limit)

    async def reset_async(self, key: Key = None) -> None:
        """`reset` for a task."""
        self.reset(key)

    async def close_async(self) -> None:
        """`close` for a task."""
        self.close()

    def __call__(self, function: _F) -> _F:
        """As a decorator: every call of the function takes a permit of this limiter."""
        from headway.throttle.decorator import throttle

        return throttle(self)(function)
