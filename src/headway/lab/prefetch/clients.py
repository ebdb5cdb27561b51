"""Clients of such a server: what each admits of the same requests.

A client sends by a function that is given to it, and is told the answer later. All of them use the same parameters,
which are the original's defaults and ours: a predict window of 1 s, 10 permits at least, a close wait of 0.5 s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from headway.core.predictor import Predictor
from headway.core.prefetch import PrefetchLedger

if TYPE_CHECKING:
    from headway.lab.prefetch.servers import Server

MS = 1_000_000
SECOND = 1000 * MS
PREDICT_WINDOW, MINIMUM, CLOSE_WAIT = SECOND, 10, 500 * MS
TIMEOUT = 2 * SECOND

Send = Callable[["Client", Any, int, int], None]
"""Send a question: by which client, its note on the fetch, the amount, the time."""


class Client(Protocol):
    """Admits requests, and hears the answers to its own questions."""

    def admit(self, now: int) -> bool: ...

    def hear(self, note: Any, granted: int, valid_ns: int, now: int) -> None: ...


class Prefetching:
    """headway's ledger, as `headway.Prefetcher` uses it."""

    def __init__(self, send: Send, *, optimistic: bool) -> None:
        self._send = send
        predictor = Predictor(PREDICT_WINDOW, MINIMUM, CLOSE_WAIT)
        self.ledger = PrefetchLedger(predictor, TIMEOUT, optimistic=optimistic)

    def admit(self, now: int) -> bool:
        ledger = self.ledger
        ledger.overdue(now)
        ledger.predictor.note(now, 1)
        fetch = ledger.begin(now, 1)
        if fetch is not None:
            self._send(self, fetch, fetch.amount, now)
        return ledger.take(now, 1)

    def hear(self, note: Any, granted: int, valid_ns: int, now: int) -> None:
        self.ledger.answer(note, now, granted, valid_ns)


class Original:
    """The algorithm that headway's is made after, as it was published.

    It asks for all that is desired, as often as its threshold says and whatever is in flight. When nothing is left
    and the last answer was full, it spends what it asks for before it is granted. What then turns out not to be granted
    is taken from what is left, if anything is, and forgotten otherwise. Validity counts from when the answer comes.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._predictor = Predictor(PREDICT_WINDOW, MINIMUM, CLOSE_WAIT)
        # [count, end] of each answer, in the order of asking.
        self._pool: list[list[int]] = []
        self._open = True
        self._asked_at = -CLOSE_WAIT

    def admit(self, now: int) -> bool:
        if self._open or now - self._asked_at >= CLOSE_WAIT:
            self._prefetch(now)
        self._predictor.note(now, 1)
        return self._spend(1, now) == 0

    def hear(self, note: Any, granted: int, valid_ns: int, now: int) -> None:
        asked, ahead = note
        self._open = granted == asked
        if ahead is None:
            if granted:
                self._pool.append([granted, now + valid_ns])
            return
        kept = any(part is ahead for part in self._pool)
        missing = asked - granted
        if kept:
            back = min(missing, ahead[0])
            ahead[0] -= back
            missing -= back
        self._spend(missing, now)
        if kept and ahead[0]:
            ahead[1] = now + valid_ns

    def _prefetch(self, now: int) -> None:
        available = sum(count for count, end in self._pool if now < end)
        desired = max(self._predictor.count(now), MINIMUM)
        if available >= max(1, desired // 2):
            return
        ahead = None
        if available == 0 and self._open:
            ahead = [desired, now + 60 * SECOND]
            self._pool.append(ahead)
        self._asked_at = now
        self._send(self, (desired, ahead), desired, now)

    def _spend(self, cost: int, now: int) -> int:
        """What could not be spent."""
        while self._pool and cost:
            first = self._pool[0]
            if now < first[1]:
                part = min(first[0], cost)
                first[0] -= part
                cost -= part
                if first[0]:
                    return 0
            self._pool.pop(0)
        return cost


class Asking:
    """Asks the server for each request, and has the answer at once: what the server itself would admit."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def admit(self, now: int) -> bool:
        return self._server.grant(1, now).amount == 1

    def hear(self, *_: Any, **__: Any) -> None:
        raise AssertionError("it has its answers already")
