"""What a prefetcher answers, and what it has counted."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import InvalidUse, seconds_text


@dataclass(frozen=True, slots=True, repr=False)
class Admission:
    """The answer of a `Prefetcher`: true if the request may go; otherwise `retry_after` says when to ask again.

    A prefetcher does not know the server's limit, so `retry_after` is a guess: when the next answer should be there.

    `reason` is "granted" (a permit of the server), "fallback" (the limiter of `on_engine_error` has decided), "limit"
    (no permit is at hand) or "waiting" (other callers wait already, and are served first).

    >>> from headway import Prefetcher
    >>> admission = Prefetcher(lambda amount: (amount, 1.0)).try_acquire()
    >>> bool(admission), admission.reason  # the first answer is still on its way
    (False, 'limit')
    """

    admitted: bool
    reason: str
    retry_after: float = 0.0

    def __bool__(self) -> bool:
        return self.admitted

    # That it returns nothing of use lets type checkers refuse `await` themselves.
    def __await__(self) -> None:
        raise InvalidUse("the answer is there already", "await prefetcher.acquire_async()")

    def __repr__(self) -> str:
        if self.admitted:
            return f"<Admission: {self.reason}>"
        return f"<Admission: denied, {self.reason}, retry after {seconds_text(self.retry_after)}>"


# There is nothing to end or to give back, so one object serves all.
GRANTED = Admission(True, "granted")
BY_FALLBACK = Admission(True, "fallback")


@dataclass(frozen=True, slots=True)
class PrefetcherStats:
    """What a `Prefetcher` has done so far, and how it stands.

    Of requests, so many were `granted` and `denied`, and so many are `waiting`. Of permits, so many were `spent`, are
    `available`, were `fetched` from the server, have `expired`, and are owed to it (`debt`). Of fetches, so many have
    begun (`fetches`) and have failed or were not answered in time (`failures`); one may be `in_flight`.

    >>> from headway import Prefetcher
    >>> prefetcher = Prefetcher(lambda amount: (amount, 1.0))
    >>> _ = prefetcher.acquire(cost=3)
    >>> stats = prefetcher.stats()
    >>> stats.granted, stats.spent, stats.fetched, stats.available, stats.fetches
    (1, 3, 10, 7, 1)
    """

    granted: int
    denied: int
    waiting: int
    spent: int
    available: int
    fetched: int
    expired: int
    debt: int
    fetches: int
    failures: int
    in_flight: bool
