"""The leases of one limiter: what its verbs mean where tokens are borrowed, and how they end.

`headway.limiter.lease_calls` has the thread that borrows and renews. Here is what a user asks for now and then.

**A lower limit** is kept from the answer of `set_limit` on: it returns when what is lent by then is no more than the
limit. Tokens that mean something else under the new limit (another window, another rate) are handed back first.

**A pause** holds here at once, and in other processes from their next call on: within a third of the TTL.

**The end.** A limiter that is closed or dropped, and a process that ends, hand everything back at once. Slots in use
are renewed until they are free. A forked child begins without tokens: those are its parent's.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.core.borrowed import BorrowedLedger, same_tokens
from headway.core.tokens import total
from headway.forks import on_fork, plan_at_exit
from headway.limiter.lease_calls import LeaseCalls, Place
from headway.status import LeaseStatus, LimiterStats, Status, seconds, stats_of

if TYPE_CHECKING:
    from headway.core.holder import Terms
    from headway.limiter.shared import SharedLimiter

_all: weakref.WeakSet[Leases] = weakref.WeakSet()


class Leases(LeaseCalls):
    """The verbs of a limiter that borrows its tokens."""

    def __init__(self, shared: SharedLimiter, terms: Terms, timeout_ns: int) -> None:
        LeaseCalls.__init__(self, shared, terms, timeout_ns)
        # What the thread of a limiter that was dropped hands back.
        self._dropped: dict[Place, int] | None = None
        _all.add(self)

    def explained(self, status: Status, keys: tuple[str | None, ...]) -> Status:
        """A status that also says what is held here, and what is known of the whole."""

        def look(now: int) -> list[LeaseStatus | None]:
            return [self._look(index, key, now) for index, key in enumerate(keys)]

        found = self._store.change(look)
        parts = tuple(
            replace(part, lease=lease)
            for part, lease in zip(status.parts, found, strict=len(status.parts) > 0)
        )
        binding = next((i for i, part in enumerate(status.parts) if part.limit is status.limit), 0)
        return replace(status, parts=parts, lease=found[binding])

    def _look(self, index: int, key: str | None, now: int) -> LeaseStatus | None:
        keyed = self._store.keyed_ledgers[index]
        ledger = keyed.default if key is None else keyed.ledgers.get(key)
        rows = self._whole.get(Place(index if self._metrics else 0, key))
        held = ledger if isinstance(ledger, BorrowedLedger) and ledger.stop > now else None
        if ledger is not None and not isinstance(ledger, BorrowedLedger):
            return None  # exempt
        return LeaseStatus(
            tokens=0 if held is None else held.held,
            expires_in=0.0 if held is None else seconds(held.stop - now),
            elsewhere=rows[index][1] if rows else None,
        )

    def stats(self) -> LimiterStats:
        """What was decided here, by a stand-in, and how often the engine was called."""
        here, instead = stats_of(self._store), self.shared._fallback.stats()
        return replace(
            here,
            granted=here.granted + instead.granted,
            denied=here.denied + instead.denied,
            waiting=here.waiting + instead.waiting,
            completed=here.completed + instead.completed,
            cancelled=here.cancelled + instead.cancelled,
            abandoned=here.abandoned + instead.abandoned,
            calls=self.calls,
        )

    def keep_limit(self) -> None:
        """After another limit was declared: return when what is lent is no more than it allows.

        Every place calls at once. No answer tells how much other clients hold, so a lower limit takes a TTL: by then
        each of them has called and handed back what was recalled, or its lease is over.
        """
        before, self._limits = self._limits, [rule.limit for rule in self._store.rules]
        lower = any(
            not same_tokens(old, new) or new.capacity < old.capacity
            for old, new in zip(before, self._limits, strict=True)
        )
        places = self.call_all()
        if not places:
            return
        ttl = self.terms.ttl / 1e9 * 1.01
        self.wait_for_answers(places, ttl)
        if lower:
            time.sleep(ttl)

    def reset(self, keys: tuple[str | None, ...]) -> None:
        """What is held here starts anew as well; what other clients hold cools by itself."""

        def refresh(now: int) -> None:
            for index, key in enumerate(keys):
                for own, ledger in self._ledgers(Place(index if self._metrics else 0, key)):
                    tokens = ledger.holder.tokens
                    batch = tokens.withdraw(now, ledger.holder.held)
                    tokens.deposit(now, ((total(batch), 0),) if batch else ())
                    ledger.follow()
                    self._store.freed.append((own, key))
            self._store.pauses.lift(keys[0])

        self._store.change(refresh)

    def close(self) -> None:
        """Hand everything back, and end the thread. Does not wait longer than the engine may take to answer."""
        before = self.begin_closing()
        if before is not None:
            self.end_closing(before)

    def begin_closing(self) -> dict[Place, int] | None:
        """Have everything handed back; what `end_closing` waits for, or None if that is done already."""
        if self._closed:
            before, self._dropped = self._dropped, None
            return before
        self._closed = True
        self.shared._fallback.close()
        return self.call_all()

    def end_closing(self, before: dict[Place, int]) -> None:
        """Wait until it is, and for the end of the thread."""
        if before and self._loop is not None:
            self.wait_for_answers(before, self._timeout + 0.1)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and not self._keeps_on():
            self._ring()
            thread.join(self._timeout + 0.1)

    def _keeps_on(self) -> bool:
        """Whether there are slots in use, for which the thread stays."""

        def look(now: int) -> bool:
            places = {*self._plan, *self._under_way}
            return any(ledger.in_use(now) for place in places for _, ledger in self._ledgers(place))

        found: bool = self._store.change(look)
        return found

    def let_go(self) -> None:
        """The limiter was dropped: the thread hands everything back by itself."""
        if not self._closed:
            self._closed = True
            self._dropped = self.call_all()

    def starting(self) -> None:
        # Before the engine says what is left to be said, at priority 0.
        plan_at_exit(close_all, priority=1)

    def after_fork(self) -> None:
        """In a forked child: the tokens are the parent's."""
        self._reset()
        self._dropped = None
        self.client = self._new_client()
        if self._store is not None:
            for keyed in self._store.keyed_ledgers:
                keyed.clear()


def after_fork() -> None:
    for leases in list(_all):
        leases.after_fork()


def close_all() -> None:
    """At the end of the process: no token waits for the end of its lease. All are closed at once."""
    closing = [(leases, leases.begin_closing()) for leases in list(_all)]
    for leases, before in closing:
        if before is not None:
            leases.end_closing(before)


on_fork(after_fork)
atexit.register(close_all)
