"""Leases of tokens, the ledger's side: which client holds how many, until when.

A fleet that asks a shared ledger for every call pays a round trip for every call. The naive remedy gives each
client a number of permits to spend, and grants more when they are used up. With a window it is wrong, because the
permits of a client come back when *it* spends them again a window later, which the ledger does not see; with a
fixed number per client it wastes what the idle ones hold. So what is lent is tokens (`headway.core.tokens`): a
client that holds k of n uses them again and again on its own, and calls only to keep them and to move them. The
tokens in the ledger and those with all clients are n together at every moment, so no delay, loss or crash can admit
more than the limit.

There is one call, `sync`. The client says what it wants and what it hands back. The ledger answers with tokens,
with how many it wants back (`recall`), and for how long all of this holds (`ttl`).

- **Twice is once.** A call has a number (`seq`). The answer to the last one is kept and given again to a
  repetition; one that is older is not heard. So a client repeats a call until it is answered.
- **An end that both know.** A lease ends `ttl` after the ledger answered. The client counts from before it sent the
  call and stops a margin earlier (`headway.core.holder`), so it stops first, whatever the network did. At the end
  the ledger takes its tokens back as if all had been spent in the last moment: usable a gap later, and a transit
  where a remote counts.
- **A lease has a name** (`lease`). A call that was on its way for long may arrive after the end of the lease that
  it is about. Its tokens have been taken back, so it must not hand them back, and its client must not go on
  spending them. The answer says so (`void`): the client forgets its tokens and begins anew.
- **Fair, and lazy.** Shares are max-min fair by want (`headway.core.shares`). A client gets tokens up to its share,
  and is asked for those above its share only while another client is short: an idle fleet moves nothing.
- **Single permits from the same ledger.** A client without leases takes from what lies here (`direct`). It counts
  as one more client: its demand gets a share, and leases leave that many tokens in the ledger.

- **A lower limit** (`resized`) leaves tokens with clients that are not there any more. Nothing is lent or granted until
  as many have come back, and they are recalled from all clients that are above their new share.

With m clients a new division costs m log m. It is done after every m / 16 calls that changed something, so that a
call costs the same for ten clients and for ten thousand, and no share is older than that.

Worked example, "20/s", a TTL of 3 s. A calls at 0 and wants 20: it gets all 20. B calls at 0.5 and wants 20: its
share is 10, and there are none. It is told to ask `again` in 250 ms. A renews at 1.0, is asked for 10 and hands
them back at once: idle ones first, then every other one of those that cool. B asks at 1.25 and has its 10, each
usable when it is cool. If A had vanished at 0.6, its 20 would have come back at 3.0, usable at 4.0.
"""

from __future__ import annotations

from typing import NamedTuple

from headway.core.demand import Demand
from headway.core.ledger import FOREVER
from headway.core.shares import MILLI, shares
from headway.core.tokens import Batch, Tokens, incoming, outgoing, total

SPREAD = 16
AGAIN = 12
"""A client that is short of its share may ask again after a TTL / 12."""


class Sync(NamedTuple):
    """What a client says. `want` is in thousandths of tokens; `holding` is what it keeps; `lease` 0 is none."""

    client: str
    seq: int
    attempt: int
    lease: int
    want: int
    holding: int
    back: Batch = ()
    closing: bool = False


class Answer(NamedTuple):
    """What the ledger says to one call; `again` 0: no sooner than the renewal.

    Spans are ticks of the ledger. An engine whose ticks are longer than a nanosecond turns them into nanoseconds.
    """

    seq: int
    attempt: int
    lease: int
    tokens: Batch = ()
    recall: int = 0
    ttl: int = 0
    again: int = 0
    void: bool = False


class Lease:
    """What the ledger knows of one client."""

    __slots__ = ("answer", "end", "heard", "held", "number", "recall", "seq", "share", "want")

    def __init__(self, number: int) -> None:
        self.number = number
        self.seq = -1
        self.held = 0
        self.want = 0
        self.share = 0
        self.recall = 0
        self.end = 0
        self.heard = 0  # when it last called
        self.answer: Answer | None = None

    def short(self) -> int:
        """How many tokens it lacks of what it wants, as far as that is its share; what is left over is not missed."""
        lacks = min(self.share, -(-self.want // MILLI)) - self.held
        return lacks if lacks > 0 else 0


class LeaseLedger:
    """Lends the tokens of one limit; times are ticks of the ledger's clock, which never runs backward."""

    __slots__ = (
        "changes", "direct_demand", "direct_share", "drift_ppm", "held", "leases", "named", "predict", "recalled",
        "short", "tokens", "ttl", "waiting", "window_end",
    )  # fmt: skip

    def __init__(self, tokens: Tokens, ttl_ns: int, drift_ppm: int, predict_ns: int) -> None:
        self.tokens = tokens
        self.ttl = ttl_ns
        self.drift_ppm = drift_ppm
        # In the order of their ends, since all are as long: a lease that is renewed moves to the end.
        self.leases: dict[str, Lease] = {}
        self.named = 0
        self.held = 0
        self.short = 0
        self.recalled = 0
        self.changes = 0
        self.predict = predict_ns
        self.direct_demand = Demand(predict_ns, tokens.span)
        self.direct_share = 0
        # How many requests for single permits wait: for as long as they do, they are demand.
        self.waiting = 0
        self.window_end = FOREVER  # when all tokens lent are gone at once

    # -- leases

    def sync(self, now: int, ask: Sync) -> Answer | None:
        """One call of a client; None if a later one of it was heard already."""
        self.expire(now)
        lease = self.leases.get(ask.client)
        if lease is not None and ask.seq <= lease.seq:
            return lease.answer if ask.seq == lease.seq else None
        if ask.lease != 0 and (lease is None or lease.number != ask.lease or total(ask.back) > lease.held):
            return Answer(ask.seq, ask.attempt, 0, void=True)
        if ask.lease == 0 and lease is not None:
            # It knows of no lease: the answer that named this one was lost for good.
            self._end(now, ask.client, lease, now)
            lease = None
        if lease is None:
            self.named += 1
            lease = Lease(self.named)
        else:
            self._settle(now, lease, ask)
        if ask.closing:
            self._end(now, ask.client, lease, now)
            return Answer(ask.seq, ask.attempt, 0)
        return self._renew(now, lease, ask)

    def _settle(self, now: int, lease: Lease, ask: Sync) -> None:
        """Take in what is handed back; what is neither handed back nor held any more was spent or lost."""
        left = lease.held - total(ask.back)
        kept = min(ask.holding, left)
        self.tokens.deposit(now, incoming(ask.back, self.drift_ppm, 1))
        if kept < left:
            self.tokens.forfeit(now, left - kept, now)
        self._book(lease, kept)

    def _book(self, lease: Lease, held: int) -> None:
        self.short -= lease.short()
        self.held += held - lease.held
        lease.held = held
        self.short += lease.short()

    def _renew(self, now: int, lease: Lease, ask: Sync) -> Answer:
        self.recalled -= lease.recall
        lease.recall = 0
        # To the end of the queue of leases: it ends last.
        known = self.leases.pop(ask.client, None) is not None
        self.leases[ask.client] = lease
        if lease.want != ask.want or not known or self.direct_share or self.waiting:
            self.short -= lease.short()
            lease.want = ask.want
            self.short += lease.short()
            self._changed(now)
        more = min(lease.share - lease.held, self.tokens.balance(now) - self.direct_share)
        granted = self.tokens.withdraw(now, more) if more > 0 else ()
        self._book(lease, lease.held + total(granted))
        self._recall(lease, self.tokens.balance(now))
        ttl = min(self.ttl, self.tokens.longest_lease(now))
        self.window_end = now + ttl if ttl < self.ttl else FOREVER
        lease.end = now + ttl
        lease.heard = now
        lease.seq = ask.seq
        lease.answer = Answer(
            ask.seq,
            ask.attempt,
            lease.number,
            outgoing(granted, self.drift_ppm),
            lease.recall,
            ttl,
            self.ttl // AGAIN if lease.short() else 0,
        )
        return lease.answer

    def _changed(self, now: int) -> None:
        self.changes += 1
        if self.changes * SPREAD >= len(self.leases):
            self.divide(now)

    def _recall(self, lease: Lease, stock: int) -> None:
        """Ask for what is above its share, as far as other clients are short and no other client was asked.

        A stock below zero is what a lower limit lacks: that is asked for, too.
        """
        lacking = self.short + self.direct_share - stock - self.recalled
        lease.recall = max(0, min(lease.held - lease.share, lacking))
        self.recalled += lease.recall

    def expire(self, now: int) -> None:
        """Take back the tokens of clients that were not heard of until the end of their lease."""
        if now >= self.window_end:
            # The tokens are gone, and their holders are not: what they want still counts.
            self.window_end = FOREVER
            for lease in self.leases.values():
                self.named += 1
                lease.number = self.named
                lease.end = lease.heard + self.ttl
                lease.recall = 0
                self._book(lease, 0)
            self.recalled = 0
            self.changes = len(self.leases)
        while self.leases:
            client = next(iter(self.leases))
            lease = self.leases[client]
            if lease.end > now:
                return
            self._end(now, client, lease, lease.end)

    def _end(self, now: int, client: str, lease: Lease, until: int) -> None:
        if lease.held > 0:
            self.tokens.forfeit(now, lease.held, until)
        self._book(lease, 0)
        self.short -= lease.short()
        self.recalled -= lease.recall
        if self.leases.pop(client, None) is not None:
            self.changes += 1

    def divide(self, now: int) -> None:
        """Give every client its share anew."""
        self.changes = 0
        leases = list(self.leases.values())
        direct = self.direct_demand.expected(now)
        if self.waiting:
            # A caller that waits for each permit asks for no more than it gets: let it get more until none waits.
            direct = max(direct, MILLI * max(self.waiting, 2 * self.direct_share))
        wants = [lease.want for lease in leases]
        held = [lease.held for lease in leases]
        n = max(0, self.tokens.balance(now) + self.held)
        if direct > 0:
            # What lies here is at hand for single permits: they hold it, as it were.
            wants.append(direct)
            held.append(self.tokens.count(now))
        parts = shares(n, wants, held)
        self.direct_share = parts.pop() if direct > 0 else 0
        self.short = 0
        for lease, share in zip(leases, parts, strict=True):
            lease.share = share
            self.short += lease.short()

    def resized(self, now: int) -> None:
        """There are more or fewer tokens than before: the ledger goes on under another limit."""
        self.expire(now)
        before = self.direct_demand
        if before.span != self.tokens.span:
            # What was counted in slots of another length is forgotten.
            after = self.direct_demand = Demand(self.predict, self.tokens.span)
            after.first = before.first
            after.recent = before.recent
            if after.steady.slot == before.steady.slot:
                after.steady = before.steady
        self.divide(now)

    # -- single permits

    def direct(self, now: int, cost: int) -> int:
        """Ask for a single permit: 0 if it may be taken from `tokens.ledger` now, else how long to wait at least.

        Where tokens have to come back from clients first, that is when the next of them renews.
        """
        self.expire(now)
        self.direct_demand.note(now, cost)
        wait = self.tokens.ledger.wait(now, cost)
        if wait == 0 or not self.leases:
            return wait
        self._changed(now)
        return min(wait, max(1, self.ttl // 3))

    # -- after a loss

    def quarantine(self, now: int) -> None:
        """Trust nothing that was written down: as if one client held all tokens and had vanished just now."""
        lost = self.held + total(self.tokens.withdraw(now, self.tokens.count(now)))
        self.leases.clear()
        self.short = self.recalled = self.changes = 0
        self.named += 1
        vanished = Lease(self.named)
        vanished.held = self.held = lost
        vanished.heard = now
        vanished.end = now + min(self.ttl, self.tokens.longest_lease(now))
        self.leases[""] = vanished
