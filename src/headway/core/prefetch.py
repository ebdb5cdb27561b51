"""Permits that were fetched ahead: what may be spent, what is owed, and when to fetch again.

The naive client asks the server for each permit and waits for the answer. The next naive client fetches ahead (see
`headway.core.predictor` for how many) and counts down. It goes wrong in five ways, and each has its rule here.

*Permits expire.* A server that grants 20 in each second means that second. The naive client counts their validity
from when the answer arrives, and spends the permits of one window for a round trip into the next. Here it counts from
before the fetch was sent, on a clock that may be slow: the server cannot have granted them earlier, so it cannot see
them later. The permits that end first are spent first. And where answers end together, as those of a fixed window do,
the client does not ask in the last round trip before that end: the permits would have ended when they arrive, and the
question that brings new ones would have to wait for that answer.

*Answers get lost.* A client that fetches once at a time and waits for the answer stands still for ever. A fetch has a
deadline; from then on it is given up, and the next one may begin. What counts when its answer comes after all? The
server did grant those permits, once, and has forgotten nothing: so a late answer is a grant like any other, valid as
counted from when *its* fetch was sent, and mostly expired. What must not count twice is one fetch: only its first
answer is taken, whether it is late, duplicated, or follows an error.

*The first answer takes a while.* Until then a strict client refuses its callers: it spends only what was granted and
has not expired. An *optimistic* one admits them in advance, while a fetch is in flight and there is reason to hope:
nothing was heard of the server yet, or its last answer was full, or the permits of its last answer have ended, as
they do at the end of its window. The advance goes no further than the client expects to be granted (a running mean of
the answers so far).

*Hopes fail.* The original forgot what it had admitted in vain, and passed 120 % of a limit. Here the shortfall is
*debt*: the next permits pay it before any caller gets one. A failed fetch turns its advance into debt too: perhaps
the server has granted it, and no client can know. An advance that was spent after the end of the permits that should
have covered it is debt as well, owed to the next window. Debt never expires, and is at most what was advanced on one
fetch: while it exceeds what the client expects, nothing more is advanced. So a server whose limit is 0 sees `minimum`
requests, once.

*Servers fail.* After an error the ledger is `failed` until a fetch is answered, and asks again after the close wait.
The front end decides what its callers hear.

At every moment

    admitted + available + expired == granted + debt + advance

where `granted` is what answers have granted, and `advance` what was admitted on the fetch in flight.

Worked example: 20 in each second at the server, a request every 50 ms, answers after 0.2 s, optimistic. At 0 the
client has nothing and asks for 10. It admits the requests of 0, 0.05, 0.1 and 0.15 s in advance. At 0.2 s it gets 10,
valid until 1 s: 4 of them are spent already, 6 are left. At 0.3 s 4 are left and 10 are desired, so it asks for 6. At
0.55 s it asks for 7, and the answer grants 4: there are no more in this second, and it does not ask before they end,
at 1 s. Then the last one is spent. It asks for 20, and hopes, because the permits of the last answer have ended: 4
requests are admitted in advance, and the answer at 1.2 s covers them. Had that answer granted only 1, then 3 would be
owed; of the next one, say 10, 7 would be left to spend.

A signal handler may raise between any two calls (`headway.interrupts`). So every change is computed first, and then
made by plain stores: what an exception leaves behind is the ledger of before, or of after, and at worst a permit
less.

Times are integer nanoseconds of one clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.core.predictor import Predictor

NEVER = 1 << 62
"""When permits end that do not expire."""

BILLION = 1_000_000_000


class Fetch:
    """A question to the server: how many permits, and by when it has to be answered."""

    __slots__ = ("advance", "amount", "answered", "deadline", "hopeful", "sent_at", "spent")

    def __init__(self, amount: int, sent_at: int, deadline: int, hopeful: bool) -> None:
        self.amount = amount
        self.sent_at = sent_at
        self.deadline = deadline
        # Whether there was reason to expect a grant when it was sent.
        self.hopeful = hopeful
        # Whether its answer was taken: there is only one.
        self.answered = False
        # What was admitted before the answer: how much, and (time, cost) of each.
        self.advance = 0
        self.spent: list[tuple[int, int]] = []


class PrefetchLedger:
    """The permits in a client's hands. It is told the time, and what the server answers.

    `drift_ppb` is by how many billionths the client's clock may be slow, `resolution_ns` the width of its tick.

    >>> from headway.core.predictor import Predictor
    >>> ledger = PrefetchLedger(Predictor(window_ns=1000, minimum=10, close_wait_ns=500), timeout_ns=300)
    >>> fetch = ledger.begin(0, needed=1)
    >>> fetch.amount, ledger.take(0, 1)
    (10, False)
    >>> ledger.answer(fetch, 200, granted=10, valid_ns=1000)
    >>> ledger.take(200, 4), ledger.available, ledger.take(999, 6), ledger.take(999, 1)
    (True, 6, True, False)
    """

    __slots__ = (
        "aligned",
        "available",
        "debt",
        "drift_ppb",
        "expected",
        "expired",
        "failed",
        "fetch",
        "full",
        "granted",
        "max_debt",
        "optimistic",
        "pool",
        "predictor",
        "resolution_ns",
        "round_trip_ns",
        "timeout_ns",
        "turn",
    )

    def __init__(
        self,
        predictor: Predictor,
        timeout_ns: int,
        *,
        optimistic: bool = False,
        max_debt: int | None = None,
        drift_ppb: int = 0,
        resolution_ns: int = 0,
    ) -> None:
        self.predictor = predictor
        self.timeout_ns = timeout_ns
        self.optimistic = optimistic
        self.max_debt = max_debt
        self.drift_ppb = drift_ppb
        self.resolution_ns = resolution_ns
        # (end, count) of what may be spent, the first to end first; `available` is their sum.
        self.pool: list[tuple[int, int]] = []
        self.available = 0
        self.debt = 0
        # The one in flight.
        self.fetch: Fetch | None = None
        self.failed = False
        # What the server seems to grant; whether it has granted all of the last fetch; when the permits of that end.
        self.expected = predictor.minimum
        self.full = True
        self.turn = NEVER
        # Whether answers end together, as those of a fixed window do.
        self.aligned = False
        # How long the last answer took.
        self.round_trip_ns = 0
        self.granted = 0
        self.expired = 0

    # -- spending ----------------------------------------------------------------------------------------

    def take(self, now: int, cost: int) -> bool:
        """Spend `cost` permits: all or none."""
        self.expire(now)
        if self.available >= cost:
            self._spend(cost)
            return True
        fetch = self.fetch
        if fetch is None or not self._may_advance(fetch, now, cost):
            return False
        fetch.spent.append((now, cost))
        fetch.advance += cost
        return True

    def expire(self, now: int) -> None:
        """Drop what has ended."""
        pool = self.pool
        if not pool or pool[0][0] > now:
            return
        ended, count = 0, 0
        for end, part in pool:
            if end > now:
                break
            ended += 1
            count += part
        self.pool = pool[ended:]
        self.available -= count
        self.expired += count

    def _may_advance(self, fetch: Fetch, now: int, cost: int) -> bool:
        if not self.optimistic or self.failed or not (fetch.hopeful or now >= self.turn):
            return False
        most = min(fetch.amount, self.expected)
        if self.max_debt is not None and self.max_debt < most:
            most = self.max_debt
        return self.debt + fetch.advance + cost <= most

    def _spend(self, cost: int) -> None:
        pool = self.pool
        used, left = 0, cost
        while left and pool[used][1] <= left:
            left -= pool[used][1]
            used += 1
        if left:
            end, count = pool[used]
            pool = [(end, count - left), *pool[used + 1 :]]
        else:
            pool = pool[used:]
        self.pool = pool
        self.available -= cost

    # -- fetching ----------------------------------------------------------------------------------------

    def begin(self, now: int, needed: int = 0) -> Fetch | None:
        """The fetch to send now, if one is needed and none is in flight; `needed` is what callers want now."""
        if self.fetch is not None or self._too_late(now):
            return None
        self.expire(now)
        amount = self.predictor.amount(now, self.available - self.debt, needed)
        if not amount:
            return None
        self.fetch = Fetch(amount, now, now + self.timeout_ns, self.full or now >= self.turn)
        return self.fetch

    def answer(
        self, fetch: Fetch, now: int, granted: int, valid_ns: int | None, retry_ns: int | None = None
    ) -> None:
        """The server has granted so many, valid for so long (None: they do not expire).

        It is taken once for each fetch, also when the fetch was given up before.
        """
        if fetch.answered:
            return
        end = NEVER if valid_ns is None else fetch.sent_at + self._shortened(valid_ns)
        self.expire(now)
        left, debt = granted, self.debt
        current = fetch is self.fetch
        if current:
            self.predictor.answered(fetch.sent_at, fetch.amount, granted, retry_ns, end)
            for at, cost in fetch.spent:
                covered = min(left, cost) if at < end else 0
                left -= covered
                debt += cost - covered
        kept = left if end > now else 0
        pool = sorted([*self.pool, (end, kept)]) if kept else self.pool
        took = max(0, now - fetch.sent_at)
        # Two fetches are sent a round trip apart at least: if they still end together, that is the end of a window.
        aligned = self.aligned if fetch.sent_at >= self.turn else 2 * abs(end - self.turn) < took
        fetch.answered = True
        self.granted += granted
        self.expired += left - kept
        self.available += kept
        self.pool = pool
        self.debt = debt
        if current:
            self.fetch = None
            self.failed = False
            self.round_trip_ns = took
            self.expected = (self.expected + granted) // 2
            self.full = granted >= fetch.amount
            self.aligned = aligned
            self.turn = end
        if debt:
            self._pay()

    def fail(self, fetch: Fetch, now: int) -> None:
        """The fetch has failed; whether the server has granted anything is not known."""
        if fetch is self.fetch:
            self.give_up(fetch)
            self.failed = True
            self.predictor.close(now)

    def overdue(self, now: int) -> Fetch | None:
        """Give up the fetch in flight if its deadline has passed; it is returned, and the next one may begin."""
        fetch = self.fetch
        if fetch is None or now < fetch.deadline:
            return None
        self.give_up(fetch)
        self.failed = True
        return fetch

    def give_up(self, fetch: Fetch) -> None:
        """Wait no more for the answer, which says nothing about the server."""
        if fetch is self.fetch:
            self.fetch = None
            self.debt += fetch.advance

    def next_change(self, now: int) -> int:
        """Until when nothing changes by itself: the fetch in flight is overdue, or asking makes sense again."""
        if self.fetch is not None:
            return self.fetch.deadline
        if self._too_late(now):
            return self.turn
        return max(now, self.predictor.closed_until)

    def retry_at(self, now: int) -> int:
        """When a caller that was refused may have success: when the answer should be there."""
        if self.fetch is not None:
            return max(now, self.fetch.sent_at + self.round_trip_ns)
        return self.next_change(now) + self.round_trip_ns

    def _too_late(self, now: int) -> bool:
        """Whether permits of this window would have ended when they arrive; an optimist may have spent them already."""
        return (
            self.aligned
            and self.turn - self.round_trip_ns <= now < self.turn
            and not (self.optimistic and self.full)
        )

    def _shortened(self, valid_ns: int) -> int:
        """What such a time is on our clock, if that is as slow as it may be."""
        return valid_ns * (BILLION - self.drift_ppb) // BILLION - self.resolution_ns

    def _pay(self) -> None:
        paid = min(self.debt, self.available)
        if paid:
            self._spend(paid)
            self.debt -= paid
