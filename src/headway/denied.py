"""`Denied`: what `try_acquire` returns instead of a permit.

Under attack most answers are "no", so a denial must not cost more than a grant. The naive way describes at once how
every rule stands, in an object for each, and mostly that is thrown away unread. Here a denial keeps the few numbers of
the decision, as they were at that moment, and `status` is made of them when it is read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from headway.errors import InvalidUse, seconds_text
from headway.status import Snapshot, Status, seconds, status_of

try:
    import cython
except ImportError:
    from headway import _cython as cython

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.core.ledger import Ledger
    from headway.core.limits import Limit


class Denied:
    """No permit, and why: false in a condition, with the facts as attributes.

    >>> from headway import Limiter
    >>> limiter = Limiter("1/minute")
    >>> bool(limiter.try_acquire())
    True
    >>> denied = limiter.try_acquire()
    >>> bool(denied), 59 < denied.retry_after <= 60, str(denied.limit)
    (False, True, '1/minute')
    """

    __slots__ = (
        "_exact",
        "_in_doubt",
        "_limit",
        "_metrics",
        "_out",
        "_reset",
        "_snapshot",
        "_status",
        "_wait",
        "key",
        "reason",
    )

    # The fields, for type checkers; their C types are in denied.pxd.
    if TYPE_CHECKING:
        key: Any
        reason: str
        _limit: Any
        _metrics: Sequence[str | None]
        _snapshot: Snapshot | None
        _status: Status | None
        _in_doubt: float
        _wait: int
        _reset: int
        _out: int
        _exact: bool

    def __init__(
        self,
        key: Any,
        snapshot: Snapshot,
        reason: str = "limit",
        in_doubt: float = 0.0,
        metrics: Sequence[str | None] = (),
    ) -> None:
        self.key = key
        self.reason = reason
        self._snapshot = snapshot
        self._metrics = metrics
        self._status = None
        self._in_doubt = in_doubt

    @property
    def status(self) -> Status:
        """How things stood when it was denied."""
        if self._status is None:
            self._status = status_of(self._rows(), self._metrics, self._in_doubt, denied=True)
        return self._status

    def _rows(self) -> Snapshot:
        """What each rule said: what a `status` is made of, and headers without one."""
        if self._snapshot is None:
            self._snapshot = [(self._limit, 0, self._wait, self._reset, 0, self._out, self._exact)]
        return self._snapshot

    @property
    def retry_after(self) -> float:
        """Seconds until it may be worth to ask again; a lower bound where `status.exact` is False."""
        if self._snapshot is None:
            return seconds(self._wait)
        return self.status.retry_after

    @property
    def limit(self) -> Limit:
        """The limit that denied."""
        return self.status.limit

    # That it returns nothing of use lets type checkers refuse `await` themselves.
    def __await__(self) -> None:
        raise InvalidUse("a denial is there already", "await limiter.try_acquire_async()")

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        why = ""
        if self.reason in ("paused", "quarantine"):
            why = f", {self.reason}"
        elif self._in_doubt:
            why = ", in doubt"
        return f"<Denied: {self.limit}, {self._when()}{why}{key}>"

    def _when(self) -> str:
        """When to ask again. While permits are out no time is known, and the least that it can be says nothing."""
        wait = self.retry_after
        if math.isinf(wait):
            return "never granted" if self.limit.capacity == 0 else "it is not known when to retry"
        if self.status.exact or wait >= 0.001:
            return f"retry after {seconds_text(wait)}{'' if self.status.exact else ' or more'}"
        return "permits are out"


def new_denied(key: Any, metrics: Sequence[str | None], ledger: Ledger, now: int, wait: int) -> Denied:
    """The denial of one permit by its only ledger, at `now`, of which nothing remains then.

    Made without a constructor, which would cost as much as the rest.
    """
    denied: Denied = Denied.__new__(Denied)
    denied.key = key
    denied.reason = "limit"
    denied._metrics = metrics
    denied._limit = ledger.get_rule().limit
    denied._wait = wait
    denied._reset = ledger.reset_after(now)
    denied._out = ledger.in_flight(now)
    denied._exact = ledger.exact(now, 1)
    if not cython.compiled:
        # Compiled, they are None and 0 by themselves.
        denied._snapshot = denied._status = None
        denied._in_doubt = 0.0
    return denied
