"""What a client holds of a shared limit, as a ledger like any other.

A client with a lease decides by itself. The naive way gives it a limiter of a second kind, with its own queue, its own
permits and its own idea of waiting. But a client that holds k tokens *is* an ordinary ledger of k
(`headway.core.tokens`), and everything above ledgers is written already. So a borrowed ledger is an ordinary one with
three things added, and the memory engine does not know the difference:

    an end      after the lease's last moment (`stop`) nothing is taken, whatever lies here
    a count     of what was asked for (`asked`), from which the client's want is predicted
    a look      now and then: is it time to call? Then the `Borrower` is told, and makes the call elsewhere

`headway.core.holder` says what to call and what an answer means. Whatever keeps the ledger carries that out: `follow`
afterwards brings the ledger in line with its holder.

**What is known of waiting.** While the client holds less than the whole limit, more tokens may come at any time. So
`wait` is a lower bound, and never longer than a client that is short waits until it may ask again. A request that needs
more than is held here has no `latest_wait`: it is woken when tokens have come.

**After the end.** The ledger that lent the tokens counts them as spent in the last moment of the lease, and gives them
to another client when they have cooled. A permit that was granted before and is entered after that moment would be one
call too many: `enter` raises `PermitExpired`. If the lease is void, or its tokens are gone with their window, the
ledger is replaced rather than emptied: permits of the old lease end on the old ledger, where nothing can
come back to life.

Worked example, "20/s" and a TTL of 3 s. A first request at 0 finds nothing: it is counted, and the borrower is told.
The answer comes at 5 ms with 6 tokens, and the request that waited for it is granted. At 2.69 s no renewal has been
answered; from here on every request is refused. At 2.8 s the answer comes, and the same tokens may be spent again.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Protocol

from headway.core.holder import Holder, Terms
from headway.core.lease import AGAIN
from headway.core.ledger import FOREVER, LONG_AGO, Ledger, Rule
from headway.core.limits import Concurrency, FixedWindow, Limit, Window
from headway.errors import PermitExpired

if TYPE_CHECKING:
    from headway.core.lease import Answer, Sync
    from headway.errors import HeadwayError

LOOKS = 4 * AGAIN
"""How often in a TTL a busy client looks whether it needs more."""

# C integers where this file is compiled.
_FOREVER = FOREVER
_LONG_AGO = LONG_AGO


class Borrower(Protocol):
    """What makes the calls."""

    client: str
    """The name under which it borrows."""
    calls: int
    """How many calls it has made, for all of its ledgers."""

    def wake(self, ledger: BorrowedLedger) -> None:
        """A ledger has something to call for."""


class BorrowedRule(Rule):
    """A limit of which tokens are borrowed. `like` is the rule that keeps this limit where it is not borrowed."""

    __slots__ = ("borrower", "look_every", "soon", "terms")

    def __init__(self, limit: Limit, like: Rule, terms: Terms, borrower: Borrower) -> None:
        Rule.__init__(self, limit, held=like.held, bracketed=like.bracketed)
        self.terms = terms
        self.borrower = borrower
        self.look_every = max(1, terms.ttl // LOOKS)
        self.soon = max(1, terms.ttl // AGAIN)

    def open(self) -> Ledger:
        return BorrowedLedger(self, None)

    def open_for(self, key: str | None) -> Ledger:
        return BorrowedLedger(self, key)


def same_tokens(before: Limit, after: Limit) -> bool:
    """Whether a token of the one limit can be spent under the other: it is gone for as long, once it is spent.

    >>> from headway.core.limits import Bucket, Window
    >>> same_tokens(Window(20, per=1), Window(5, per=1)), same_tokens(Window(20, per=1), Window(20, per=2))
    (True, False)
    >>> same_tokens(Bucket("20/s", burst=20), Bucket("5/s", burst=20))
    False
    """
    if isinstance(before, Window) and isinstance(after, Window):
        return before.per_ns == after.per_ns and before.remote == after.remote
    return isinstance(before, FixedWindow | Concurrency)


class BorrowedLedger(Ledger):
    """Tokens of one limit that this client holds for one key.

    >>> from headway.core.lease import LeaseLedger
    >>> from headway.core.lendable import tokens_to_lend
    >>> from headway.core.limits import Window
    >>> from headway.core.window import WindowRule
    >>> class Here:
    ...     client, calls, due = "here", 0, []
    ...     wake = due.append
    >>> limit = Window(20, per=1, remote=False)
    >>> ledger = BorrowedRule(limit, WindowRule(limit, 1, 0), Terms(), Here()).open()
    >>> ledger.asked(0, 1)
    >>> ledger.wait(0, 1) > 0, Here.due == [ledger]
    (True, True)
    >>> shared = LeaseLedger(tokens_to_lend(limit, 1, 0, 10**9), 3 * 10**9, 0, 4 * 10**9)
    >>> ledger.answered(5_000_000, shared.sync(0, ledger.call(0))) is ledger
    True
    >>> ledger.wait(5_000_000, 1), ledger.remaining(5_000_000)
    (0, 6)
    """

    __slots__ = ("away", "dead", "demand", "held", "holder", "key", "look_at", "own", "relet", "rule", "stop")

    def __init__(self, rule: BorrowedRule, key: str | None, holder: Holder | None = None) -> None:
        self.tally = 0
        self.rule = rule
        self.key = key
        self.holder = Holder(rule.limit, rule.borrower.client, rule.terms) if holder is None else holder
        if holder is None:
            # A key that was forgotten comes back under numbers that its lender has not heard yet.
            self.holder.seq = rule.borrower.calls
        self.demand = self.holder.demand
        self.look_at = _LONG_AGO
        # Whether another ledger has taken its place.
        self.dead = False
        # Whether what is held here is to be handed back, as it means something else under the limit of today.
        self.relet = False
        # Why the last call was not answered, until one is.
        self.away: HeadwayError | None = None
        self.follow()

    def follow(self) -> None:
        """Be what the holder says: its tokens, how many they are, and until when they may be spent."""
        holder = self.holder
        self.own: Ledger = holder.tokens.ledger
        self.held = holder.held
        self.stop = _LONG_AGO if self.relet else holder.stop

    # -- calls

    def asked(self, now: int, cost: int) -> None:
        self.demand.note(now, cost)
        if now >= self.look_at:
            self._look(now)

    def _look(self, now: int) -> None:
        self.look_at = now + self.rule.look_every
        holder = self.holder
        holder.notice(now, self.wait(now, 1) > 0)
        if holder.pending is None and (holder.lease == 0 or holder.grown(now)):
            self.rule.borrower.wake(self)

    def current(self, now: int) -> BorrowedLedger:
        """This ledger; or another one in its place, if its tokens are gone with their window."""
        holder = self.holder
        if holder.tokens.used_up and holder.lease != 0 and holder.pending is None and now >= holder.stop:
            holder.drop()
            return self._successor()
        return self

    def call(self, now: int, waiting: int = 0) -> Sync:
        """The call to send now; `waiting` is what requests in the queue lack."""
        said = self.holder.call(now, waiting)
        self.follow()
        return said

    def close(self, now: int) -> Sync:
        """The last call: hand back what is here. Nothing is granted until there is another lease."""
        said = self.holder.close(now)
        self.follow()
        self.stop = _LONG_AGO
        return said

    def hand_back(self, now: int) -> Sync:
        """Hand back what is not in use; the lease goes on for the rest, and nothing more is granted."""
        self.holder.recall = self.holder.held
        said = self.holder.call(now)
        self.follow()
        return said

    def in_use(self, now: int) -> bool:
        """Whether slots are in use, of a limit whose tokens are slots."""
        return bool(self.holder.tokens.occupied) and self.own.in_flight(now) > 0

    def answered(self, now: int, answer: Answer) -> BorrowedLedger:
        """Take an answer in. Returns this ledger, or the one that takes its place if there is no lease any more."""
        self.away = None
        if not self.holder.answered(now, answer):
            return self
        if self.holder.lease == 0:
            return self._successor()
        self.follow()
        return self

    def _successor(self) -> BorrowedLedger:
        self.dead = True
        self.stop = _LONG_AGO
        return BorrowedLedger(self.rule, self.key, self.holder)

    def unused(self, now: int) -> bool:
        """Whether no request came for ten TTLs, and nothing is in use: what is here may go back."""
        return now - self.demand.last > 10 * self.rule.terms.ttl and self.own.in_flight(now) == 0

    def check(self, now: int) -> None:
        """A request is not granted now. Raise what the last call failed with, if nothing can be had until another is
        answered."""
        self.holder.notice(now, True)
        if self.away is not None and now >= self.stop:
            # One error for many requests: each has a traceback of its own.
            raise self.away.with_traceback(None)

    def may_refuse(self) -> bool:
        return self.away is None and not self.rule.held

    # -- what every ledger can be asked

    def get_rule(self) -> Rule:
        return self.rule

    def wait(self, now: int, cost: int) -> int:
        if now >= self.stop:
            return self.rule.soon
        wait = self.own.wait(now, cost)
        if wait > self.rule.soon and self.held < self.rule.capacity:
            return self.rule.soon
        return wait

    def latest_wait(self, now: int, cost: int) -> int:
        if now >= self.stop or cost > self.held:
            return _FOREVER
        return self.own.latest_wait(now, cost)

    def exact(self, now: int, cost: int) -> bool:
        if now >= self.stop:
            return False
        if self.held < self.rule.capacity:
            return self.own.wait(now, cost) == 0
        return self.own.exact(now, cost)

    def take(self, at: int, cost: int) -> int:
        mark = self.own.take(at, cost)
        self.tally = self.own.tally
        return mark

    def take_held(self, at: int, cost: int) -> int:
        mark = self.own.take_held(at, cost)
        self.tally = self.own.tally
        return mark

    def enter(self, now: int, cost: int, mark: int, tally: int, at: int) -> int:
        if now >= self.stop:
            raise PermitExpired(None if self.stop == _LONG_AGO else (now - self.stop) / 1e9)
        return self.own.enter(now, cost, mark, tally, at)

    def slot(self, now: int, cost: int) -> int:
        return -1

    def complete(self, now: int, cost: int, mark: int) -> None:
        self.own.complete(now, cost, mark)

    def abandon(self, now: int, cost: int, mark: int) -> None:
        self.own.abandon(now, cost, mark)

    def cancel(self, now: int, cost: int, mark: int, tally: int) -> None:
        self.own.cancel(now, cost, mark, tally)

    def settle(self, now: int, cost: int, mark: int, tally: int, actual: int) -> None:
        self.own.settle(now, cost, mark, tally, actual)

    def remaining(self, now: int) -> int:
        return 0 if now >= self.stop else self.own.remaining(now)

    def reset_after(self, now: int) -> int:
        return self.own.reset_after(now)

    def in_flight(self, now: int) -> int:
        return self.own.in_flight(now)

    def idle(self, now: int) -> bool:
        """Nothing is held, and nothing was asked for in a while. What was replaced is not idle: permits end here."""
        if self.dead or self.holder.lease != 0 or self.holder.pending is not None:
            return False
        return now - self.demand.last > self.rule.terms.predict

    def reconfigure(self, rule: Rule, now: int) -> None:
        """Go on under another limit, which the next call is about. Tokens that mean something else now are not spent
        any more (`relet`)."""
        relet = self.relet or not same_tokens(self.rule.limit, rule.limit)
        self.rule = rule  # type: ignore[assignment]
        self.holder.limit = rule.limit
        if relet:
            # The answer to a call under way may bring such tokens, too.
            self.relet = self.holder.lease != 0 or self.holder.pending is not None
            self.stop = _LONG_AGO

    def copy(self) -> Ledger:
        holder = copy(self.holder)
        holder.sent = list(holder.sent)
        holder.tokens = copy(holder.tokens)
        holder.tokens.ledger = holder.tokens.ledger.copy()
        twin = BorrowedLedger(self.rule, self.key, holder)
        twin.tally = self.tally
        twin.stop = self.stop
        twin.look_at = self.look_at
        twin.dead = self.dead
        twin.relet = self.relet
        twin.away = self.away
        return twin

    def mend(self, now: int) -> None:
        self.own.mend(now)

    def state(self) -> tuple[int, ...]:
        return (self.held, self.stop, *self.own.state())
