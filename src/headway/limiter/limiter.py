"""`Limiter`: a limit, the ledgers that keep it, and the verbs to ask for permits.

The verbs that are called for every request are inherited from `headway.limiter.local`, which is compiled; here is
what happens once or rarely: construction, looking, reserving, pausing, changing. A limiter in memory does it by
itself. One on a shared engine has a `SharedLimiter`, and every verb is passed on to it.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headway.clock import Clock, as_clock
from headway.core.ledger import Rule
from headway.core.limits import Limit
from headway.core.rules import rules_of
from headway.core.wait_queue import Ticket
from headway.engines.base import Engine
from headway.engines.memory import open_store
from headway.engines.uri import check_engine, is_local, open_engine
from headway.errors import InvalidArgument, InvalidKey, InvalidUse, LimiterClosed, NotPromised, RateLimited
from headway.events import EventEmitter, LimiterEvent
from headway.limiter import prefetch_options, shared_options
from headway.limiter.async_call import AsyncCall
from headway.limiter.hold import Hold
from headway.limiter.limit_input import Limits, as_remote, check_remote, limits_of
from headway.limiter.limit_table import LimitTable, Overrides
from headway.limiter.local import LocalLimiter
from headway.limiter.prefetch_options import Prefetch
from headway.limiter.request_input import Cost, Key, Timeout, costs_of, keys_of, pause_to_ns, timeout_to_ns
from headway.limiter.shared_options import SharedOptions
from headway.status import LimiterStats, Status, stats_of, status_of

if TYPE_CHECKING:
    from headway.core.remote import Remote
    from headway.denied import Denied
    from headway.engines.memory import MemoryStore
    from headway.feedback import Feedback
    from headway.limiter.feedback import Heard, Reaction, Reactions
    from headway.limiter.permits import Permit
    from headway.limiter.shared import SharedLimiter
    from headway.outcome import Proof

_F = TypeVar("_F", bound=Callable[..., Any])

log = logging.getLogger("headway")


class Limiter(LocalLimiter):
    """Keeps a limit: ask it before each call.

    >>> limiter = Limiter("100/minute")
    >>> with limiter:                                   # waits for a permit
    ...     answer = "call the API here"
    >>> bool(limiter.try_acquire("alice"))              # one ledger for each key; never waits
    True
    >>> limiter.peek("alice").remaining
    99

    `limit` is a string, a limit, or a mapping from metrics to them; `overrides` gives single keys another one, or
    exempts them (None in a mapping; None from a function means the limiter's own limit). `engine`
    says where the ledgers are: in this process, or shared with others (a URI, an `Engine`, or a client of redis-py).
    `remote` says when a `Window` counts. None: whatever brackets a call (`with`, `hold`, `throttle`) counts as the
    remote does, a bare `acquire` at the decision. False: always at the decision. True or a `Remote`: always as the
    remote does. `timeout` and `max_waiting` bound waiting; `start="full"` begins as if everything had just been used;
    `on_event` is told what happens.
    """

    __slots__ = ("__weakref__", "_clock", "_options", "_reactions", "_remote", "_table")

    def __init__(
        self,
        limit: Limits,
        *,
        name: str | None = None,
        engine: str | Engine | Any = "memory://",
        remote: Remote | bool | None = None,
        overrides: Overrides | None = None,
        timeout: float | timedelta | None = None,
        max_waiting: int | None = None,
        start: Literal["idle", "full"] = "idle",
        on_engine_error: Literal["closed", "open", "local"] = "closed",
        engine_timeout: float | timedelta = 0.25,
        local_share: float = 0.1,
        on_ledger_loss: Literal["quarantine", "trust"] | None = None,
        max_quarantine: float | timedelta | None = 60,
        prefetch: bool | Prefetch = False,
        on_event: Callable[[LimiterEvent], object] | None = None,
        clock: Clock | Any = None,
    ) -> None:
        given: dict[str, Any] = {
            "on_engine_error": on_engine_error, "engine_timeout": engine_timeout, "local_share": local_share,
            "on_ledger_loss": on_ledger_loss, "max_quarantine": max_quarantine, "prefetch": prefetch,
        }  # fmt: skip
        check_engine(engine)
        if max_waiting is not None and (type(max_waiting) is not int or max_waiting < 0):
            raise InvalidArgument("max_waiting", max_waiting, "an integer from 0 up, or None")
        if on_event is not None and not callable(on_event):
            raise InvalidArgument("on_event", on_event, "a function of one event, or None")
        timeout_ns = timeout_to_ns(timeout)
        source = as_clock(clock)
        self._remote = as_remote(remote)
        self._clock = source
        self._reactions: Reactions | None = None
        emitter = None if on_event is None else EventEmitter(on_event, name, source)
        if is_local(engine):
            shared_options.refuse_in_memory(given)
            store = self._open_store(limit, overrides, name, source, start)
            LocalLimiter.__init__(self, store, None, timeout_ns, max_waiting, emitter)
            self._options = None
            return
        own_name = shared_options.checked_name(name)
        fields = shared_options.checked(given, start)
        options = SharedOptions(
            name=own_name, engine=open_engine(engine, fields["engine_timeout_ns"] / 1e9), clock=source,
            remote=self._remote, overrides=overrides, timeout_ns=timeout_ns, max_waiting=max_waiting,
            on_event=on_event, emitter=emitter, **fields,
        )  # fmt: skip
        from headway.limiter.shared import SharedLimiter

        shared = SharedLimiter(limit, options)
        if prefetch:
            self._borrow(limit, shared, options, prefetch_options.read(prefetch))
        else:
            LocalLimiter.__init__(self, None, shared, timeout_ns, max_waiting, emitter)
        self._options = {
            "limit": limit, "name": name, "engine": engine, "remote": remote, "overrides": overrides,
            "timeout": timeout, "max_waiting": max_waiting, "on_event": on_event, "clock": clock, **given,
        }  # fmt: skip

    # -- construction ------------------------------------------------------------------------------------

    def _open_store(
        self, limit: Limits, overrides: Overrides | None, name: Any, clock: Clock, start: Any
    ) -> MemoryStore:
        """A new store, or the one that another limiter of this name has begun."""
        if start not in ("idle", "full"):
            raise InvalidArgument("start", start, "'idle' or 'full'")
        if name is not None and not isinstance(name, str):
            raise InvalidArgument("name", name, "a str, or None")

        limits = self._read(limit)
        if overrides is None:
            check_remote(self._remote, limits)
        table = LimitTable(limits, overrides, self._read, partial(self._rules_of, clock))
        store = open_store(name, clock, start_full=start == "full")
        if not store.keyed_ledgers:
            store.metrics = list(table.metrics)
            store.configure(table.rules, table.choosers())
            store.limits = table.limits
        else:
            table.check_same_shape(name, store.metrics, store.rules)
            store.reconfigure(table.rules, table.limits, table.choosers() if table.has_overrides else None)
        store.users += 1
        self._table = table
        return store

    def _borrow(
        self, limit: Limits, shared: SharedLimiter, options: SharedOptions, prefetch: Prefetch
    ) -> None:
        """Decide in memory, with tokens that are borrowed from the shared ledgers."""
        from headway.limiter.leases import Leases

        clock = options.clock
        terms = prefetch.terms(_resolution_ns(clock), clock.drift_ppm, options.engine.drift_ppm)
        leases = Leases(shared, terms, options.engine_timeout_ns)
        self._table = table = LimitTable(self._read(limit), options.overrides, self._read, leases.rules_of)
        store = open_store(None, clock, start_full=False)
        store.name = options.name
        store.metrics = list(table.metrics)
        store.configure(table.rules, table.choosers())
        store.limits = table.limits
        store.users = 1
        leases.keep(store)
        LocalLimiter.__init__(self, store, None, options.timeout_ns, options.max_waiting, options.emitter)
        self._leases = leases
        weakref.finalize(self, leases.let_go).atexit = False

    def _rules_of(self, clock: Clock, limit: Limit) -> tuple[Rule, ...]:
        return rules_of(limit, _resolution_ns(clock), clock.drift_ppm)

    def _read(self, limit: Limits) -> dict[str, Limit]:
        return limits_of(limit, self._remote)

    def _stand_in_for(self, name: str) -> None:
        """Decide for a limiter whose engine is away: under its name, and without a warning after a fork."""
        self._store.name = name
        self._store.counts.first_time("fork")

    def _check_cost(self, cost: Any) -> None:
        """Raise for a cost that makes no sense with these metrics."""
        costs_of(cost, self._store.metrics if self._shared is None else self._shared.table.metrics)

    @property
    def limit(self) -> Limit | dict[str, Limit]:
        """The limit it keeps, or one for each metric.

        >>> Limiter("100/minute").limit
        Window(100, per=60)
        """
        limits: dict[str, Limit] = self._store.limits if self._shared is None else self._shared.table.limits
        return limits[""] if "" in limits else dict(limits)

    @property
    def name(self) -> str | None:
        """The name of its ledgers."""
        return self._store.name if self._shared is None else self._shared.name

    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        shared = self._shared if self._leases is None else self._leases.shared
        engine = "" if shared is None else f", engine={shared.address!r}"
        limit = self.limit
        text = (
            str(limit) if isinstance(limit, Limit) else {metric: str(part) for metric, part in limit.items()}
        )
        return f"{type(self).__name__}({text!r}{name}{engine})"

    def __reduce__(self) -> Any:
        from headway.throttle.call_policy import reduced

        own = reduced(self)
        if own is not None:
            return own
        if self._options is None:
            raise TypeError(
                "a limiter on memory:// cannot be pickled: the copy would keep a limit of its own; "
                "build it where it is used, at module level for instance"
            )
        return _rebuild, (type(self), dict(self._options))

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

        Only where a time can be promised (`Bucket`, `Spacing`). Earlier waiters are promised theirs first.

        >>> limiter = Limiter("10/s burst 1")
        >>> limiter.reserve().delay
        0.0
        >>> 0.09 < limiter.reserve().delay <= 0.1
        True
        """
        if self._shared is not None:
            return self._shared.run(self._shared.reserving(key, cost))
        keys, costs = self._request(key, cost)
        store = self._store
        for keyed, own_key in zip(store.keyed_ledgers, keys, strict=True):
            rule = keyed.rule_for(own_key)
            if not rule.promises:
                raise NotPromised(rule.limit, leased=store.leased)
            if rule.capacity == 0:
                raise RateLimited(float("inf"), limit=rule.limit, key=keys[0], reason="never")
        ticket = Ticket(keys, costs, owner=self)
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
                limit=store.rules[0].limit,
                key=keys[0],
                status=status_of(store.snapshot(keys, costs), store.metrics, denied=True),
            )
        permit = self._permit_for(ticket)
        permit._promise(slot)
        if self._listener is not None:
            self._listener.emit("granted", key, cost)
        return permit

    def try_acquire_async(self, key: Key = None, *, cost: Cost = 1) -> Coroutine[Any, Any, Permit | Denied]:
        """`try_acquire` for a task. Forgetting the `await` is an error: a coroutine would be true.

        >>> import asyncio
        >>> bool(asyncio.run(Limiter("1/minute").try_acquire_async()))
        True
        >>> bool(Limiter("1/minute").try_acquire_async())
        Traceback (most recent call last):
        headway.errors.InvalidUse: a coroutine is true, whatever its result will be: write \
`if await limiter.try_acquire_async():`
        """
        call = LocalLimiter.try_acquire_async(self, key, cost=cost)
        return AsyncCall(call, "if await limiter.try_acquire_async():")

    def reserve_async(self, key: Key = None, *, cost: Cost = 1) -> Coroutine[Any, Any, Permit]:
        """`reserve` for a task."""
        return AsyncCall(self._reserve_async(key, cost), "async with await limiter.reserve_async():")

    async def _reserve_async(self, key: Key, cost: Cost) -> Permit:
        if self._shared is not None:
            return await self._shared.run_async(self._shared.reserving(key, cost))
        return self.reserve(key, cost=cost)

    def peek(self, key: Key = None, *, cost: Cost = 1) -> Status:
        """How things stand for such a request; consumes nothing.

        >>> Limiter("100/minute").peek().remaining
        100
        """
        if self._shared is not None:
            return self._shared.run(self._shared.peeking(key, cost))
        self._check_open()
        keys, costs = self._request(key, cost)
        status = status_of(self._store.snapshot(keys, costs), self._store.metrics)
        return status if self._leases is None else self._leases.explained(status, keys)

    def _check_open(self) -> None:
        if self._closed:
            raise LimiterClosed(self.name)

    async def peek_async(self, key: Key = None, *, cost: Cost = 1) -> Status:
        """`peek` for a task."""
        if self._shared is not None:
            return await self._shared.run_async(self._shared.peeking(key, cost))
        return self.peek(key, cost=cost)

    def pause(self, seconds: float | timedelta, key: str | None = None) -> None:
        """Grant nothing for so long (a 429 with `Retry-After` came back); the longest pause holds, 0 lifts it.

        >>> limiter = Limiter("100/minute")
        >>> limiter.pause(30)
        >>> limiter.try_acquire().reason
        'paused'
        """
        ns = _checked_pause(seconds, key)
        if self._shared is not None:
            self._shared.run(self._shared.pausing(seconds, key))
            return
        self._check_open()
        if self._leases is not None:
            self._leases.shared.run(self._leases.shared.pausing(seconds, key))
        self._pause_here(key, ns)

    def _pause_here(self, key: str | None, ns: int) -> None:
        if self._leases is not None:
            self._leases.paused_here()
        self._store.pause(None if key is None else str.__str__(key), ns)
        if self._listener is not None and self._leases is None:
            self._listener.emit("paused", key, None, ns / 1e9)

    async def pause_async(self, seconds: float | timedelta, key: str | None = None) -> None:
        """`pause` for a task."""
        ns = _checked_pause(seconds, key)
        if self._shared is not None:
            await self._shared.run_async(self._shared.pausing(seconds, key))
            return
        if self._leases is None:
            self.pause(seconds, key)
            return
        self._check_open()
        await self._leases.shared.run_async(self._leases.shared.pausing(seconds, key))
        self._pause_here(key, ns)

    def feedback(
        self,
        response: Any,
        key: str | None = None,
        *,
        profile: str | None = None,
        follow: bool = True,
        one_remote: bool = True,
    ) -> Feedback | None:
        """Act on what the remote says in a response: pause the key, back off, or keep a lower limit.

        Call it with every response, not only with refusals: a success ends a row of refusals. `response` is one of
        httpx, requests, aiohttp or botocore, or `(status, headers[, body])`; `profile` is a vendor that its host does
        not tell. What was read is returned. A lower limit is followed, stated or learned, unless `follow` is False;
        never a higher one. `one_remote` is False where keys are different remotes, as hosts are: then an answer says
        nothing of other keys, and only its own is paused.

        >>> limiter = Limiter("100/minute")
        >>> limiter.feedback((429, {"Retry-After": "30"})).wait
        30.0
        >>> limiter.try_acquire().reason
        'paused'
        """
        follow = follow and one_remote
        heard = self._hear(response, key, profile, one_remote)
        used = _used(self.peek()) if self._asks_use(heard, key, follow) else 0
        reaction = self._react(heard, key, follow, used)
        if reaction.limit is not None:
            self._change_limit(reaction.limit)
            self._tell_followed(heard.said, reaction.again)
        if reaction.seconds:
            self.pause(reaction.seconds, reaction.key)
        return heard.said

    async def feedback_async(
        self,
        response: Any,
        key: str | None = None,
        *,
        profile: str | None = None,
        follow: bool = True,
        one_remote: bool = True,
    ) -> Feedback | None:
        """`feedback` for a task."""
        follow = follow and one_remote
        heard = self._hear(response, key, profile, one_remote)
        used = _used(await self.peek_async()) if self._asks_use(heard, key, follow) else 0
        reaction = self._react(heard, key, follow, used)
        if reaction.limit is not None:
            await self._change_limit_async(reaction.limit)
            self._tell_followed(heard.said, reaction.again)
        if reaction.seconds:
            await self.pause_async(reaction.seconds, reaction.key)
        return heard.said

    def _hear(self, response: Any, key: Any, profile: str | None, one_remote: bool) -> Heard:
        from headway.limiter.feedback import Reactions, hear

        if key is not None and not isinstance(key, str):
            raise InvalidKey(key, costs=False)
        if self._reactions is None:
            self._reactions = Reactions()
        heard = hear(response, profile, self._clock.wall() / 1e9)
        return heard if one_remote else heard.of_its_key_alone()

    def _asks_use(self, heard: Heard, key: str | None, follow: bool) -> bool:
        assert self._reactions is not None
        return follow and self._reactions.asks(heard, key, self._clock.now(), self.limit)

    def _react(self, heard: Heard, key: str | None, follow: bool, used: int) -> Reaction:
        assert self._reactions is not None
        # A rate that is found by trial answers a refusal by itself, unless the remote says how long to wait.
        said = heard.said
        steps = self._shared is None and self._store.heard(key, said is not None and said.refused)
        kept = self.limit if follow else None
        return self._reactions.to(heard, key, self._clock.now(), kept, used, backs_off=not steps)

    def _tell_followed(self, said: Feedback | None, again: bool) -> None:
        limit = self.limit
        text = (
            str(limit)
            if isinstance(limit, Limit)
            else "; ".join(f"{name}: {part}" for name, part in limit.items())
        )
        why = "the remote states it" if said is not None and said.limits else "its refusals show"
        # Where two calls are told different limits, these take turns for ever: the log tells each of them once.
        level = logging.INFO if again else logging.WARNING
        log.log(level, "headway: %s keeps %s from now on, as %s", self.name or "a limiter", text, why)
        if self._listener is not None:
            self._listener.emit("followed", None, None)

    def rate(self, key: str | None = None) -> float | None:
        """Calls per second that an adaptive limit allows now; None where the rate is not found by trial.

        >>> limiter = Limiter("adaptive 1/s to 100/s from 10/s")
        >>> limiter.rate()
        10.0
        >>> limiter.feedback((429, {})).refused
        True
        >>> limiter.rate() < 10
        True
        """
        return None if self._shared is not None else self._store.rate_of(key)

    def set_limit(self, limit: Limits) -> None:
        """Keep another limit of the same kind from now on; what was used stays used.

        >>> limiter = Limiter("100/minute")
        >>> limiter.set_limit("200/minute")
        >>> limiter.peek().remaining
        200
        """
        self._change_limit(limit)
        if self._reactions is not None:
            self._reactions.configured(self.limit)

    def _change_limit(self, limit: Limits) -> None:
        if self._shared is not None:
            self._shared.set_limit(limit)
            # A copy that another process makes of it says what this one says: the newest limit governs.
            self._options = {**(self._options or {}), "limit": limit}
            return
        store = self._store
        table = self._table.replace(self._read(limit))
        table.check_same_shape(store.name, store.metrics, store.rules)
        self._check_open()
        if self._leases is not None:
            self._leases.shared.set_limit(limit)
            self._options = {**(self._options or {}), "limit": limit}
        store.reconfigure(table.rules, table.limits, table.choosers() if table.has_overrides else None)
        self._table = table
        if self._leases is not None:
            self._leases.keep_limit()

    async def set_limit_async(self, limit: Limits) -> None:
        """`set_limit` for a task."""
        await self._change_limit_async(limit)
        if self._reactions is not None:
            self._reactions.configured(self.limit)

    async def _change_limit_async(self, limit: Limits) -> None:
        if self._leases is not None:
            await asyncio.to_thread(self._change_limit, limit)
            return
        self._change_limit(limit)

    def reset(self, key: Key = None) -> None:
        """Let a key start anew, as if nothing had been used.

        >>> limiter = Limiter("1/minute")
        >>> _ = limiter.acquire()
        >>> limiter.reset()
        >>> bool(limiter.try_acquire())
        True
        """
        if self._shared is not None:
            self._shared.run(self._shared.resetting(key))
            return
        self._check_open()
        keys = keys_of(key, self._store.metrics, costs=False)
        if self._leases is not None:
            self._leases.shared.run(self._leases.shared.resetting(key))
            self._leases.reset(keys)
            return
        self._store.reset(keys)

    async def reset_async(self, key: Key = None) -> None:
        """`reset` for a task."""
        if self._shared is not None:
            await self._shared.run_async(self._shared.resetting(key))
            return
        if self._leases is not None:
            self._check_open()
            await self._leases.shared.run_async(self._leases.shared.resetting(key))
            self._leases.reset(keys_of(key, self._store.metrics, costs=False))
            return
        self.reset(key)

    def reset_all(self) -> None:
        """Let every key start anew, and lift every pause. On a shared engine, reset single keys.

        >>> limiter = Limiter("1/minute")
        >>> _ = limiter.acquire("alice"), limiter.acquire("bob")
        >>> limiter.reset_all()
        >>> bool(limiter.try_acquire("alice")), bool(limiter.try_acquire("bob"))
        (True, True)
        """
        if self._shared is not None or self._leases is not None:
            raise InvalidUse(
                "reset_all() is for memory://: a shared engine does not list its keys", "limiter.reset(key)"
            )
        self._store.reset_all()

    async def reset_all_async(self) -> None:
        """`reset_all` for a task."""
        self.reset_all()

    def stats(self) -> LimiterStats:
        """What was granted, denied and ended so far, and how many keys are remembered.

        >>> limiter = Limiter("1/minute")
        >>> _ = limiter.try_acquire("alice"), limiter.try_acquire("alice")
        >>> limiter.stats().granted, limiter.stats().denied, limiter.stats().keys
        (1, 1, 1)
        """
        if self._shared is not None:
            return self._shared.stats()
        if self._leases is not None:
            return self._leases.stats()  # type: ignore[no-any-return]
        return stats_of(self._store)

    def close(self) -> None:
        """End every wait of this limiter with `LimiterClosed`, and grant nothing any more.

        In memory, other limiters of the same name go on.

        >>> limiter = Limiter("1/minute")
        >>> limiter.close()
        >>> limiter.try_acquire()
        Traceback (most recent call last):
        headway.errors.LimiterClosed: the limiter is closed
        """
        if self._shared is not None:
            self._shared.close()
        elif not self._closed:
            self._closed = True
            self._plain = False
            self._store.close(self)
            if self._leases is not None:
                self._leases.close()

    async def close_async(self) -> None:
        """`close` for a task."""
        if self._leases is not None:
            await asyncio.to_thread(self.close)
            return
        self.close()

    def __call__(self, function: _F) -> _F:
        """As a decorator: every call of the function takes a permit of this limiter."""
        from headway.throttle.decorator import throttle

        return throttle(self)(function)


def _used(status: Status) -> int:
    """How much of a limit that is one window is used."""
    return status.limit.capacity - status.remaining


def _resolution_ns(clock: Clock) -> int:
    """A clock that claims no ticks is still read in whole nanoseconds."""
    return max(1, -(-int(clock.resolution * 1e12) // 1000))


def _checked_pause(length: Any, key: Any) -> int:
    ns = pause_to_ns(length)
    if key is not None and not isinstance(key, str):
        raise InvalidKey(key, costs=False)
    return ns


def _rebuild(kind: type[Limiter], options: dict[str, Any]) -> Limiter:
    """A copy of a limiter in another process: a subclass with a constructor of its own is not asked again."""
    limiter = kind.__new__(kind)
    Limiter.__init__(limiter, **options)
    return limiter
