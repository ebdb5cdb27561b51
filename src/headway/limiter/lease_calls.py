"""The calls that borrow, renew and hand back the tokens of one limiter, and what the answers change.

A limiter with `prefetch` decides in memory, on borrowed ledgers (`headway.core.borrowed`), and no request waits for the
engine unless there is no token here. Everything that has to be said to the engine is said by one thread, which runs an
event loop so that the calls for many keys are under way at once. It starts when a first request finds nothing, and ends
when no lease is left, with its limiter, or with the process; at the end all tokens go back.

**One call for a key.** The rules of one key are renewed together, in one command. With metrics every metric has keys of
its own, and each of its ledgers is a *place* of its own. A place has one call at a time. It comes again when its holder
says so (`Holder.next_call`), or at once when a request looks and finds that more is needed.

**When the engine is away.** A call that is not answered is repeated until it is. Meanwhile the tokens that are here may
be spent until their lease ends. After that a request fails with the engine's error, or a stand-in decides, as
`on_engine_error` says.

**What an answer tells of others.** Another process may have declared another limit, or paused a key: this one follows,
from its next call on.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.core.borrowed import BorrowedLedger, BorrowedRule
from headway.core.ledger import FOREVER, LONG_AGO
from headway.core.lendable import tokens_to_lend
from headway.core.rules import rules_of
from headway.core.unlimited import Unlimited
from headway.engines.base import Sync
from headway.errors import EngineUnavailable, HeadwayError, LimiterClosed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.core.holder import Terms
    from headway.core.ledger import Rule
    from headway.core.limits import Limit
    from headway.engines.base import Synced
    from headway.engines.memory import MemoryStore
    from headway.limiter.limiter import Limiter
    from headway.limiter.request_input import Cost, Key
    from headway.limiter.shared import SharedLimiter

log = logging.getLogger("headway")

LONGEST_SLEEP = 3600.0
_numbers = itertools.count(1)


class Place(NamedTuple):
    """What is renewed in one call: a key, or with metrics a key of one of their rules."""

    rule: int
    key: str | None


class LeaseCalls:
    """Makes the calls for the ledgers of one limiter; the `Borrower` of its rules."""

    def __init__(self, shared: SharedLimiter, terms: Terms, timeout_ns: int) -> None:
        self.shared = shared
        self.terms = terms
        self.client = self._new_client()
        self.calls = 0
        self._timeout = timeout_ns / 1e9
        self._store: Any = None
        self._limits: list[Limit] = []
        self._closed = False
        self._reset()

    def _new_client(self) -> str:
        return f"{os.getpid():x}-{os.urandom(6).hex()}-{next(_numbers)}"

    def _reset(self) -> None:
        """Without a thread, and without anything under way."""
        # Around the life of the thread; a finalizer may ring while this thread has it.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._due: deque[BorrowedLedger | Place] = deque()
        # When each place calls next; what is in the heap and not the same here is out of date.
        self._plan: dict[Place, int] = {}
        self._heap: list[tuple[int, int, Place]] = []
        # Since when a place's call is under way; and which of them have something to say that it does not.
        self._under_way: dict[Place, int] = {}
        self._once_more: set[Place] = set()
        # How often each place was answered, and what is known of the whole since.
        self._answers: dict[Place, int] = {}
        self._whole: dict[Place, list[Any]] = {}
        # When a pause was begun or lifted here: what a call that left before says of pauses is older.
        self._paused_at = LONG_AGO
        self._answered = threading.Condition()

    def keep(self, store: MemoryStore) -> None:
        """Keep the leases of this store's ledgers."""
        self._store = store
        self._limits = [rule.limit for rule in store.rules]
        store.leased = True
        # That every process decides by itself is no surprise here.
        store.counts.first_time("fork")

    def rules_of(self, limit: Limit) -> tuple[Rule, ...]:
        """The rules of a limit whose tokens are borrowed; raises for a limit that cannot be lent."""
        terms = self.terms
        if isinstance(limit, Unlimited):
            return rules_of(limit, terms.resolution, terms.drift_ppm)
        parts: tuple[Limit, ...] = getattr(limit, "limits", (limit,))
        for part in parts:
            tokens_to_lend(part, 1, 0, terms.ttl)
        like = rules_of(limit, max(1, terms.resolution), terms.drift_ppm)
        return tuple(BorrowedRule(part, rule, terms, self) for part, rule in zip(parts, like, strict=True))

    # -- from decisions ----------------------------------------------------------------------------------

    def wake(self, ledger: BorrowedLedger) -> None:
        """A request found that this ledger has something to call for. Never blocks for long, never fails."""
        if self._closed:
            ledger.away = LimiterClosed(self.shared.name)
            return
        self._due.append(ledger)
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            loop, bell = self._loop, self._bell
            if loop is not None and bell is not None:
                loop.call_soon_threadsafe(bell.set)
            elif self._thread is None and not self._closed:
                self.starting()
                self._thread = threading.Thread(target=self._run, name="headway-leases", daemon=True)
                self._thread.start()

    def starting(self) -> None:
        """The thread is about to start."""

    def instead(self, error: EngineUnavailable, key: Key, cost: Cost) -> Limiter:
        """The limiter that decides while the engine is away; raises the error where there is none."""
        return self.shared._instead(error, key, cost)

    # -- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            try:
                runner.run(self._keep_calling())
            except BaseException:
                # The next request that needs a call starts another thread.
                with self._lock:
                    self._loop = self._bell = self._thread = None
                    self._under_way.clear()
                raise

    async def _keep_calling(self) -> None:
        bell, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._lock:
            self._bell, self._loop = bell, loop
        tasks: set[asyncio.Task[None]] = set()
        while True:
            bell.clear()
            calls, left_ns = self._store.change(self._collect)
            for call in calls:
                task = asyncio.create_task(self._sync(*call))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            if left_ns is None and all(task.done() for task in tasks) and self._may_end():
                return
            # An alarm costs less than a time-out, which ends by cancelling: an idle client does this again and again.
            longest = LONGEST_SLEEP if left_ns is None else min(LONGEST_SLEEP, left_ns / 1e9)
            alarm = loop.call_later(longest, bell.set)
            await bell.wait()
            alarm.cancel()

    def _may_end(self) -> bool:
        """Whether nothing is left to call for; then the next request that needs a call starts another thread."""
        with self._lock:
            if self._due:
                return False
            self._loop = self._bell = self._thread = None
            return True

    def _collect(self, now: int) -> tuple[list[Any], int | None]:
        """The calls that are due, and how long until the next one (None: not before the next request)."""
        urgent: set[Place] = set()
        while self._due:
            due = self._due.popleft()
            place = due if isinstance(due, Place) else self._place_of(due)
            if place is not None:
                urgent.add(place)
        while self._heap and self._heap[0][0] <= now:
            at, _, place = heapq.heappop(self._heap)
            if self._plan.get(place) == at:
                urgent.add(place)
        calls = []
        for place in urgent:
            if place in self._under_way:
                self._once_more.add(place)
                continue
            asks = self._asks(place, now)
            if any(ask is not None for _, _, ask in asks):
                self._plan.pop(place, None)
                self._under_way[place] = now
                calls.append((place, asks))
            else:
                self._forget(place)
        while self._heap and self._plan.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return calls, max(0, self._heap[0][0] - now) if self._heap else None

    def _place_of(self, ledger: BorrowedLedger) -> Place | None:
        """Where a ledger is; None if it was replaced or forgotten since."""
        for index, keyed in enumerate(self._store.keyed_ledgers):
            if keyed.peek(ledger.key) is ledger:
                return Place(index if self._metrics else 0, ledger.key)
        return None

    @property
    def _metrics(self) -> bool:
        return self._store.metrics[0] is not None

    def _ledgers(self, place: Place) -> Iterator[tuple[int, BorrowedLedger]]:
        """The borrowed ledgers of a place."""
        for index, keyed in enumerate(self._store.keyed_ledgers):
            if self._metrics and index != place.rule:
                continue
            ledger = keyed.default if place.key is None else keyed.ledgers.get(place.key)
            if isinstance(ledger, BorrowedLedger):
                yield index, ledger

    def _forget(self, place: Place) -> None:
        """Nothing is to be said of a place before its next request."""
        self._plan.pop(place, None)
        self._once_more.discard(place)
        self._answers.pop(place, None)
        self._whole.pop(place, None)

    def _asks(self, place: Place, now: int) -> list[tuple[int, BorrowedLedger, Any]]:
        """What each ledger of a place has to say now."""
        asks: list[tuple[int, BorrowedLedger, Any]] = []
        for index, found in list(self._ledgers(place)):
            ledger = found.current(now)
            if ledger is not found:
                self._store.keyed_ledgers[index].put(place.key, ledger)
            holder = ledger.holder
            waiting = self._waiting(index, place.key)
            if self._closed and now >= holder.stop:
                ask = None  # what was here is over
            elif holder.pending is not None:
                ask = ledger.call(now)
            elif holder.lease != 0 and self._closed and ledger.in_use(now):
                # A slot in use would be lent to another client at once: its lease goes on until it is free.
                ask = ledger.hand_back(now)
            elif holder.lease != 0 and (self._closed or ledger.relet or (not waiting and ledger.unused(now))):
                ask = ledger.close(now)
            elif self._closed or (holder.lease == 0 and not waiting and ledger.unused(now)):
                ask = None
            else:
                ask = ledger.call(now, waiting)
            asks.append((index, ledger, ask))
        return asks

    def _waiting(self, index: int, key: str | None) -> int:
        """How much the requests in the queue of a ledger need."""
        queue = self._store.queues.by_place.get((index, key))
        return 0 if queue is None else sum(ticket.costs[index] for ticket in queue.tickets.values())

    async def _sync(self, place: Place, asks: list[tuple[int, BorrowedLedger, Any]]) -> None:
        count = len(self._store.keyed_ledgers)
        said: list[Any] = [None] * count
        for index, _, ask in asks:
            said[index] = ask
        keys: tuple[str | None, ...] = (place.key,)
        if self._metrics:
            keys = tuple(place.key if index == place.rule else None for index in range(count))
        command = Sync(keys, tuple(said), self.terms.ttl, self.terms.predict)
        self.calls += 1
        try:
            synced = await self.shared.ledgers.send_async(command, asyncio.get_running_loop())
        except HeadwayError as error:
            self._store.change(partial(self._failed, place, asks, error))
            # Not under the lock: a function of the user's is called.
            if not isinstance(error, LimiterClosed):
                self.shared._notify("engine_error", place.key, 0.0)
        except Exception as error:
            log.exception("limiter %r: a call for tokens failed", self.shared.name)
            away = EngineUnavailable(self.shared.address, str(error))
            self._store.change(partial(self._failed, place, asks, away))
            self.shared._notify("engine_error", place.key, 0.0)
        else:
            self._store.change(partial(self._heard, place, asks, synced))
        with self._answered:
            self._answered.notify_all()
        if self._bell is not None:
            self._bell.set()

    # -- answers -----------------------------------------------------------------------------------------

    def _heard(
        self, place: Place, asks: list[tuple[int, BorrowedLedger, Any]], synced: Synced, now: int
    ) -> None:
        rows = synced.rows()
        for index, ledger, ask in asks:
            answer = synced.answers[index]
            if ask is None or answer is None:
                continue
            after = ledger.answered(now, answer)
            if after is not ledger:
                self._store.keyed_ledgers[index].put(place.key, after)
            if rows:
                self._follow_limit(place, index, after, rows[index][0], now)
            self._store.freed.append((index, place.key))
        self._whole[place] = rows
        self._answers[place] = self._answers.get(place, 0) + 1
        if self._under_way[place] >= self._paused_at:
            self._follow_pause(place.key, synced.paused_ns, now)
        if place in self._once_more:
            self._once_more.discard(place)
            self._due.append(place)
        self._replan(place, now)

    def _failed(
        self, place: Place, asks: list[tuple[int, BorrowedLedger, Any]], error: HeadwayError, now: int
    ) -> None:
        for index, ledger, _ in asks:
            ledger.away = error
            self._store.freed.append((index, place.key))
        self._replan(place, now)

    def _replan(self, place: Place, now: int) -> None:
        del self._under_way[place]
        at = FOREVER
        for index, ledger in self._ledgers(place):
            at = min(at, ledger.holder.next_call(now))
            if self._waiting(index, place.key) and ledger.holder.lease == 0:
                at = min(at, now + self.terms.resend)
        if at < FOREVER:
            self._plan[place] = at
            heapq.heappush(self._heap, (at, next(_numbers), place))
        elif place not in self._due:
            self._forget(place)

    def _follow_limit(self, place: Place, index: int, ledger: BorrowedLedger, limit: Limit, now: int) -> None:
        """Another process may have declared another limit, which governs for all: tokens are of that one now."""
        if limit == self.shared.table.rule_for(index, place.key).limit:
            limit = self._store.rule_for(index, place.key).limit
        if limit != ledger.rule.limit:
            (rule,) = self.rules_of(limit)
            ledger.reconfigure(rule, now)
            if ledger.relet:
                self._due.append(place)

    def _follow_pause(self, key: str | None, left_ns: int, now: int) -> None:
        """Pause a key for as long as the ledger says; if it says nothing, neither the key nor all are paused."""
        store = self._store
        if left_ns > 0:
            store.queues.resumed = max(store.pauses.pause(key, now, left_ns), store.queues.resumed)
        elif key in store.pauses.until or None in store.pauses.until:
            store.pauses.lift(key)
            store.pauses.lift(None)
            store.queues.resumed = now
            store.queues.wake_heads()

    def paused_here(self) -> None:
        """A pause was begun or lifted by this limiter, and the engine has heard of it."""
        self._paused_at = self._store.clock.now()

    # -- all at once ------------------------------------------------------------------------------------

    def call_all(self) -> dict[Place, int]:
        """Call for every place that holds anything; how often each was answered before."""

        def due(_: int) -> dict[Place, int]:
            places = {*self._plan, *self._under_way}
            self._due.extend(places)
            # The answer that is under way may know nothing of what is to be said.
            return {place: self._answers.get(place, 0) + (place in self._under_way) for place in places}

        before: dict[Place, int] = self._store.change(due)
        if before:
            self._ring()
        return before

    def wait_for_answers(self, before: dict[Place, int], timeout: float) -> bool:
        """Until every one of these places was answered since; False if that took too long."""

        def answered(_: int) -> bool:
            return all(
                (place not in self._plan and place not in self._under_way and place not in self._due)
                or self._answers.get(place, 0) > count
                for place, count in before.items()
            )

        def looked() -> bool:
            found: bool = self._store.change(answered)
            return found

        with self._answered:
            return self._answered.wait_for(looked, timeout)
