"""Leases of tokens, a client's side: spend what is held, and know when to call.

A client that holds k tokens is an ordinary ledger of k; to spend one needs no call, and a token that was spent is
usable again by its own ledger's rule. What is left to decide is when the lease ends, when to call, what to ask for,
and what to hand back.

**When it ends.** The naive client counts the TTL from when the answer arrived. The ledger counts from when it sent
it, so a slow answer makes two holders of one token. This client counts from before it *sent* the call, on its own
clock that never runs backward, shortened by the drift of both clocks and by a margin. After that moment it spends
nothing. It does not throw its tokens away either: a call that reached the ledger in time has kept the lease alive,
and the answer will tell. Of several attempts at one call the answer names the one that was heard, and that one's
departure counts.

**When to call.** One call at a time, repeated as it is until an answer comes:

    no lease            at the first request
    a third of the TTL  has passed: two more attempts fit before the end
    recall              at once: another client is short
    short               after what the ledger said (`again`), while its share is not filled
    demand has grown    by a quarter and half a token, beyond what is held, once in a TTL / 12

Less demand is no reason to call: what it frees is handed back when another client is short.

**What to ask for.** The predicted number of requests within the span for which a token is gone once it is spent, in
thousandths of a token (`headway.core.demand`); no headroom, since the ledger spreads what is left over. A slot of a
`Concurrency` is in use for as long as its call takes, and no count of requests says how long that is. So the most that
were in use are asked for; and twice as many while requests are refused, which finds the right number in a few calls.
So it is while requests wait: a caller that waits for each permit asks no more often than it is granted one, and its
count would say for ever that what it gets is what it needs.

**What to hand back.** As many as were recalled: idle ones, then an even sample of those that cool. Those in use stay.
A call that hands tokens back and is never answered has not lost them: it is repeated, and the ledger hears it once.

Worked example, a TTL of 3 s, 250 ppm here and 1000 ppm there, a margin of 300 ms. A call leaves at 10.0 and is
answered at 10.2. The lease counts from 10.0: 3 s less 0.00375 s of drift, less 0.3 s: the last moment to spend is
12.696. The renewal leaves at 11.0.
"""

from __future__ import annotations

from typing import NamedTuple

from headway.core.demand import Demand
from headway.core.lease import AGAIN, Answer, Sync
from headway.core.ledger import FOREVER, LONG_AGO
from headway.core.lendable import tokens_to_borrow
from headway.core.limits import Limit
from headway.core.shares import MILLI
from headway.core.tokens import MILLION, Batch, Tokens, at_least, at_most, incoming, outgoing, total

SECOND = 1_000_000_000


class Terms(NamedTuple):
    """What a fleet agrees on, in nanoseconds; the drifts are of the client's clock and of the ledger's.

    The margin covers the ticks of both clocks and what lies between a decision and its use.
    """

    ttl: int = 3 * SECOND
    margin: int = 3 * SECOND // 10
    predict: int = 4 * SECOND
    resend: int = SECOND // 2
    resolution: int = 1
    drift_ppm: int = 250
    ledger_drift_ppm: int = 1000
    least: int = 1
    """How many tokens a client asks for at least."""


class Holder:
    """One client's tokens of one limit; times are nanoseconds of its own clock."""

    __slots__ = (
        "again_at", "client", "demand", "grown_at", "held", "lacked", "lease", "limit", "peak", "pending", "recall",
        "renew_at", "sent", "seq", "stop", "terms", "tokens", "want",
    )  # fmt: skip

    def __init__(self, limit: Limit, client: str, terms: Terms) -> None:
        self.limit = limit
        self.client = client
        self.terms = terms
        self.seq = 0
        self.pending: Sync | None = None
        self.sent: list[int] = []  # when each attempt at the pending call left
        self.want = 0  # as it was told last
        # Since the last call: the most slots in use, and whether a request found none.
        self.peak = 0
        self.lacked = False
        self.renew_at = LONG_AGO
        self.grown_at = LONG_AGO
        self._forget()
        self.demand = Demand(terms.predict, self.tokens.span)

    def drop(self) -> None:
        """Hold nothing any more, and say so with the next call."""
        self._forget()
        self.pending = None

    def _forget(self) -> None:
        """Hold nothing: there is no lease, or it is over."""
        terms = self.terms
        self.tokens: Tokens = tokens_to_borrow(
            self.limit, terms.resolution, terms.drift_ppm, terms.ledger_drift_ppm, terms.ttl
        )
        self.lease = 0
        self.held = 0
        self.recall = 0
        self.stop = LONG_AGO
        self.again_at = FOREVER

    # -- spending

    def ask(self, now: int, cost: int) -> int:
        """Note a request: 0 if it may be taken from `tokens.ledger` now, else the least that it has to wait.

        Without a lease, or after its end, the wait is that for an answer, of which no time is known: 1.
        """
        self.demand.note(now, cost)
        wait = self.wait(now, cost)
        self.notice(now, wait > 0)
        return wait

    def notice(self, now: int, lacked: bool) -> None:
        """A request was made, and a token for it was lacking or not."""
        if self.tokens.occupied:
            self.peak = max(self.peak, self.tokens.ledger.in_flight(now))
            self.lacked = self.lacked or lacked

    def need(self, now: int) -> int:
        """The thousandths of tokens that requests will need."""
        if not self.tokens.occupied:
            return self.demand.expected(now)
        return MILLI * (self.peak + (max(1, self.peak) if self.lacked else 0))

    def wait(self, now: int, cost: int) -> int:
        if now >= self.stop:
            return 1
        return self.tokens.ledger.wait(now, cost)

    # -- calling

    def next_call(self, now: int) -> int:
        """The time from which `call` has something to say; FOREVER: not before the next request."""
        if self.pending is not None:
            return self.sent[-1] + self.terms.resend
        if self.lease == 0:
            return max(now, self.renew_at) if self.demand.total else FOREVER
        if self.recall > 0:
            return now
        return min(self.renew_at, self.again_at)

    def grown(self, now: int) -> bool:
        """Whether so much more is needed than was asked for that it is worth a call."""
        if self.pending is not None or self.lease == 0 or now < self.grown_at + self.terms.ttl // AGAIN:
            return False
        if self.want > self.held * MILLI + MILLI:
            return False  # not even what was asked for was there
        want = self.need(now)
        return want > self.held * MILLI and want > self.want + self.want // 4

    def call(self, now: int, waiting: int = 0) -> Sync:
        """The call to send now: the pending one once more, or a new one; requests in the queue lack `waiting`."""
        if self.pending is not None:
            self.sent.append(now)
            self.pending = self.pending._replace(attempt=len(self.sent) - 1)
            return self.pending
        if self.tokens.used_up and now >= self.stop:
            self._forget()
        back: Batch = self.tokens.withdraw(now, self.recall) if self.recall else ()
        want = self.need(now)
        if want or waiting:
            # Callers that wait for each permit ask for no more than they get: let them get more until none waits.
            least = max(waiting, 2 * self.held) if waiting else 0
            want = max(want, MILLI * min(self.limit.capacity, max(least, self.terms.least)))
        if self.want - self.want // 8 <= want <= self.want + self.want // 32:
            want = self.want  # a number that trembles would move tokens to and fro
        return self._new_call(now, want, back)

    def close(self, now: int) -> Sync:
        """The last call: hand back what is here and leave the rest to the ledger."""
        back = self.tokens.withdraw(now, self.held)
        self.pending = None
        return self._new_call(now, 0, back, closing=True)

    def _new_call(self, now: int, want: int, back: Batch, *, closing: bool = False) -> Sync:
        self.recall = 0
        self.again_at = FOREVER
        self.grown_at = now
        self.want = want
        self.peak = self.tokens.ledger.in_flight(now)
        self.lacked = False
        self.held = self.tokens.count(now) if self.tokens.used_up else self.held - total(back)
        self.seq += 1
        self.sent = [now]
        self.pending = Sync(
            self.client,
            self.seq,
            0,
            self.lease,
            want,
            self.held,
            outgoing(back, self.terms.drift_ppm),
            closing,
        )
        return self.pending

    def answered(self, now: int, answer: Answer) -> bool:
        """Take an answer in; False if it is none to the pending call."""
        pending = self.pending
        if pending is None or answer.seq != pending.seq:
            return False
        left = self.sent[answer.attempt]
        self.pending = None
        if answer.void or answer.lease == 0:
            self._forget()
            self.renew_at = now
            return True
        self.lease = answer.lease
        terms = self.terms
        self.tokens.deposit(now, incoming(answer.tokens, terms.drift_ppm, terms.resolution))
        self.held += total(answer.tokens)
        self.recall = answer.recall
        # The end in true time is no earlier than by a fast clock there, and no later than by a slow one here.
        sure = answer.ttl * (MILLION - terms.drift_ppm) // (MILLION + terms.ledger_drift_ppm)
        self.stop = left + sure - terms.margin
        self.renew_at = left + max(min(terms.ttl, answer.ttl) // 3, terms.ttl // AGAIN)
        if answer.ttl < terms.ttl:
            self.renew_at = min(
                self.renew_at, now + at_least(at_most(answer.ttl, terms.ledger_drift_ppm), terms.drift_ppm)
            )
        self.again_at = now + answer.again if answer.again else FOREVER
        return True
