"""Grants that can still be given back.

A refund (`is_negative_hits`) says how many hits are given back, and not which ones. The naive way takes the number off
a counter. For a limit that holds in any window that is too much: of 2 a minute, A at 0 s and B at 50 s, let A be
refunded at 55 s. If B's place is freed in error, C goes at 55 s, and at 60 s, when A's place is free, D goes: B, C and
D are three in a minute.

So the *oldest* hits of the key are given back first, through the permit that they were granted with, which never
returns more than it still weighs. What stays recorded is then at least as late as what really happened, whichever
hits were meant. A place that is freed may be worth less than the refund (a bucket that is full by now gets nothing),
and never more. There is one condition: a refund comes while its hits still count, so within the period of its limit.
One that comes later has nothing to give back, and would give back the hits of others.

That argument needs every earlier grant, and memory is bounded. So the oldest are kept and later ones are left out: a
*gap* in the row says how many. A refund that reaches a gap is used up there without effect, until the gap is so old
that its hits do not count any more. When there is no room for another key at all, new keys are left out until all that
was left out is too old to matter.

On a shared engine a refund is less exact, and still never more than was taken. Grants are known to the process that
made them: of several servers the one that granted should hear the refund, as another one gives back its own grants of
that key, or nothing where it has none. And a shared ledger hears of a permit once: a second refund goes to the next
grant.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from headway.core.limits import AllOf, Bucket, FixedWindow, Limit, Spacing, Window

MOST_GRANTS = 100_000
"""Of one rule."""
MOST_OF_A_KEY = 1_000
MOST_KEYS = 100_000
MOST_HITS = 1 << 61
"""Of one grant that is charged more and more: numbers end at 2**62."""


class Grant:
    """A permit and its cost; a gap has no permit."""

    __slots__ = ("at", "cost", "permit")

    if TYPE_CHECKING:
        permit: Any
        cost: int
        at: int


def new_grant(permit: Any, cost: int, at: int) -> Grant:
    """Without a constructor, which would be the slowest part of it."""
    grant: Grant = Grant.__new__(Grant)
    grant.permit = permit
    grant.cost = cost
    grant.at = at
    return grant


class Refunds:
    """The grants of one rule that still weigh something, the oldest of each key first. Times are nanoseconds."""

    __slots__ = (
        "_grants",
        "_left_out_until",
        "_most",
        "_most_keys",
        "_most_of_key",
        "_permits",
        "_sweep_at",
        "period_ns",
    )

    def __init__(
        self,
        period_ns: int,
        most: int = MOST_GRANTS,
        most_of_key: int = MOST_OF_A_KEY,
        most_keys: int = MOST_KEYS,
    ) -> None:
        self.period_ns = period_ns
        self._most = most
        self._most_of_key = most_of_key
        self._most_keys = most_keys
        self._grants: dict[str | None, deque[Grant]] = {}
        self._permits = 0
        self._left_out_until: int | None = None
        self._sweep_at = 64

    def __len__(self) -> int:
        """How many permits are kept."""
        return self._permits

    def add(self, key: str | None, permit: Any, cost: int, now: int) -> None:
        """A permit was granted just now."""
        row = self._grants.get(key)
        if row is None:
            row = self._new_row(key, now)
            if row is None:
                return
        else:
            self._expire(row, now)
        if self._permits < self._most and len(row) < self._most_of_key:
            row.append(new_grant(permit, cost, now))
            self._permits += 1
        elif row and row[-1].permit is None:
            row[-1].cost = min(row[-1].cost + cost, MOST_HITS)
            row[-1].at = now
        else:
            row.append(new_grant(None, cost, now))

    def give_back(self, key: str | None, hits: int, now: int) -> int:
        """Give back as many hits of the oldest grants; how many there were to give back."""
        row = self._grants.get(key)
        if row is None:
            return 0
        self._expire(row, now)
        left, given = hits, 0
        while left and row:
            grant = row[0]
            taken = min(left, grant.cost)
            left -= taken
            if grant.permit is None:
                grant.cost -= taken
                if not grant.cost:
                    row.popleft()
                continue
            given += taken
            grant.cost -= taken
            if grant.cost:
                grant.permit._resize(grant.cost)
            else:
                grant.permit.cancel()
            if grant.permit.ended is not None:
                row.popleft()
                self._permits -= 1
        if not row:
            del self._grants[key]
        return given

    def charge(self, key: str | None, hits: int, now: int) -> bool:
        """Charge more hits than there are, to the newest grant of a key; False if there is none that could be."""
        row = self._grants.get(key)
        grant = next((each for each in reversed(row or ()) if each.permit is not None), None)
        if row is None or grant is None:
            return False
        grant.cost = min(grant.cost + hits, MOST_HITS)
        # They are as late as now, and so is what they are a part of: it goes back last.
        grant.at = now
        grant.permit._resize(grant.cost)
        if grant.permit.ended is not None:
            # A shared ledger hears of a permit once.
            row.remove(grant)
            self._permits -= 1
        return True

    def _new_row(self, key: str | None, now: int) -> deque[Grant] | None:
        if len(self._grants) >= self._sweep_at:
            self._sweep(now)
        if self._left_out_until is not None and now >= self._left_out_until:
            self._left_out_until = None
        if self._left_out_until is not None or len(self._grants) >= self._most_keys:
            self._left_out_until = now + self.period_ns
            return None
        row = self._grants[key] = deque()
        return row

    def _expire(self, row: deque[Grant], now: int) -> None:
        """Let go of what is too old to count."""
        while row:
            grant = row[0]
            if grant.at + self.period_ns > now:
                return
            row.popleft()
            if grant.permit is not None:
                self._permits -= 1

    def _sweep(self, now: int) -> None:
        """Let go of keys all of whose grants are too old; as often as the number of keys has doubled."""
        for key, row in list(self._grants.items()):
            self._expire(row, now)
            if not row:
                del self._grants[key]
        self._sweep_at = max(64, min(2 * len(self._grants), self._most_keys))


def period_ns(limit: Limit) -> int:
    """After how long a grant has no weight any more, at most.

    >>> period_ns(Window(5, per=60)), period_ns(Bucket("10/s", burst=20))
    (60000000000, 2000000000)
    """
    if isinstance(limit, AllOf):
        return max(period_ns(part) for part in limit.limits)
    if isinstance(limit, Bucket):
        return -(-limit.burst * limit.per_ns // max(1, limit.count))
    if isinstance(limit, Spacing):
        return limit.interval_ns
    if isinstance(limit, Window | FixedWindow):
        return limit.per_ns
    return 0
