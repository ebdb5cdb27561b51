"""Permits that clients of the service hold: each under an id, and for as long as its lease runs.

A permit that counts until its end (`5 concurrent`, or a call that a window brackets) is held by this process for a
client that it cannot see. A client that vanishes would keep its place for ever. So every such permit has a lease, which
its client renews where the call takes longer. When the lease runs out, the permit is abandoned: the outcome of the call
is unknown, so a window counts it until `max_transit` is over, and a place among `5 concurrent` is free again.

How a permit ended is remembered for a while, since a client whose answer was lost ends it again and gets the same
answer. An id cannot be guessed: 128 bits of the system's randomness.
"""

from __future__ import annotations

import asyncio
import heapq
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from headway.errors import PermitExpired
from headway.service.problems import Problem

if TYPE_CHECKING:
    from headway.limiter.permits import Permit

EXPIRED = "expired"
REMEMBERED = 600.0
"""Seconds for which the end of a permit is remembered."""
MOST_REMEMBERED = 100_000


class Held:
    """One permit that is out."""

    __slots__ = ("expires", "lease", "limit", "permit")

    def __init__(self, limit: str, permit: Permit, lease: float, expires: float) -> None:
        self.limit = limit
        self.permit = permit
        self.lease = lease
        self.expires = expires


class End(NamedTuple):
    """How a permit ended, and when."""

    how: str
    at: float


class HeldPermits:
    """The permits of all clients."""

    def __init__(self, now: Callable[[], float], most: int = 100_000) -> None:
        self._now = now
        self._most = most
        self._held: dict[str, Held] = {}
        self._out: Counter[str] = Counter()
        self._ends: OrderedDict[str, End] = OrderedDict()
        # By expiry; an entry whose permit has ended or was renewed is passed over.
        self._expiries: list[tuple[float, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        """Whether no more permits are held for clients."""
        return len(self._held) >= self._most

    def add(self, limit: str, permit: Permit, lease: float) -> str:
        """Hold a permit; its id."""
        id = secrets.token_urlsafe(16)
        expires = self._now() + lease
        self._held[id] = Held(limit, permit, lease, expires)
        self._out[limit] += 1
        self._idle.clear()
        self._expire_at(expires, id)
        return id

    def release(self, id: str, how: str, cost: int | Mapping[str, int] | None = None) -> str:
        """End a permit; how it ended. A second time it is the same answer. Raises a `Problem`."""
        self.expire()
        held = self._held.get(id)
        if held is None:
            return self._ended_before(id, how)
        if how == "settle":
            if cost is None:
                raise Problem(
                    "bad-request", 'settle needs "cost": what the call cost in the end', member="cost"
                )
            held.permit.settle(cost)
        else:
            getattr(held.permit, how)()
        self._forget(id, held, how)
        return how

    def _ended_before(self, id: str, how: str) -> str:
        end = self._ends.get(id)
        if end is None:
            detail = (
                "it was never given out by this server, or ended long ago, or the server has restarted since"
            )
            raise Problem("unknown-permit", detail)
        if end.how == EXPIRED:
            detail = "its lease has run out, and it was abandoned: renew a permit while the call takes longer"
            raise Problem("permit-expired", detail)
        if end.how != how:
            detail = f"it has ended before ({end.how}), and a permit ends once"
            raise Problem("permit-finished", detail, ended=end.how)
        return end.how

    def renew(self, id: str, lease: float | None) -> float:
        """Keep a permit for longer; for how long. Raises a `Problem`."""
        self.expire()
        held = self._held.get(id)
        if held is None:
            ended = self._ended_before(id, EXPIRED)  # always raises
            raise AssertionError(ended)
        try:
            if held.permit._held:
                held.permit.check()
        except PermitExpired as error:
            # The engine has it again: it was lost with its ledger, or this process was stopped for too long.
            self._forget(id, held, EXPIRED)
            raise Problem("permit-expired", str(error)) from None
        held.lease = held.lease if lease is None else lease
        held.expires = self._now() + held.lease
        self._expire_at(held.expires, id)
        return held.lease

    def expire(self) -> None:
        """Abandon the permits whose lease has run out."""
        now = self._now()
        while self._expiries and self._expiries[0][0] <= now:
            _, id = heapq.heappop(self._expiries)
            held = self._held.get(id)
            if held is not None and held.expires <= now:
                held.permit.abandon()
                self._forget(id, held, EXPIRED)

    def abandon_all(self) -> int:
        """Abandon all that are out, since the server ends; how many they were."""
        out = list(self._held.items())
        for id, held in out:
            held.permit.abandon()
            self._forget(id, held, "abandon")
        if self._timer is not None:
            self._timer.cancel()
        return len(out)

    async def all_ended(self) -> None:
        """Wait until no permit is out."""
        await self._idle.wait()

    def out(self, limit: str) -> int:
        """How many permits of a limit are out."""
        return self._out[limit]

    def first_by_limit(self, most: int, among: int = 5000) -> dict[str, list[Held]]:
        """Some permits of each limit, the oldest first: up to `most` of each, of the `among` oldest ones."""
        found: dict[str, list[Held]] = {}
        for held in islice(self._held.values(), among):
            of_limit = found.setdefault(held.limit, [])
            if len(of_limit) < most:
                of_limit.append(held)
        return found

    def _forget(self, id: str, held: Held, how: str) -> None:
        now = self._now()
        del self._held[id]
        self._out[held.limit] -= 1
        if not self._out[held.limit]:
            del self._out[held.limit]
        self._ends[id] = End(how, now)
        while self._ends and (
            len(self._ends) > MOST_REMEMBERED or next(iter(self._ends.values())).at <= now - REMEMBERED
        ):
            self._ends.popitem(last=False)
        if not self._held:
            self._expiries.clear()
            self._idle.set()

    def _expire_at(self, expires: float, id: str) -> None:
        heapq.heappush(self._expiries, (expires, id))
        if len(self._expiries) > 2 * len(self._held) + 1000:
            # Ends and renewals leave entries behind, and a client may renew as fast as it can.
            self._expiries = [(held.expires, id) for id, held in self._held.items()]
            heapq.heapify(self._expiries)
        self._arm()

    def _arm(self) -> None:
        """Wake up when the next lease runs out."""
        if not self._expiries:
            self._timer = None
            self._timer_at = float("inf")
            return
        first = self._expiries[0][0]
        if first >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = first
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, first - self._now()) + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        self.expire()
        self._arm()
