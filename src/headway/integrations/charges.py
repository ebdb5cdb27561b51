"""The permits of one request, where several limits are asked for it: all of them, or none.

A limit that refuses gives back what the limits before it have granted, so that a refused request is not charged. The
headers of a response tell of the limit with the least left. When the engine has not answered one limit, the next one
is decided without asking it again: a request waits for `engine_timeout` once.
"""

from __future__ import annotations

from typing import Any

from headway import Permit, Status
from headway.integrations.inbound import Admission, Inbound
from headway.integrations.refusals import Refusal


class Charges:
    """What one request has been granted so far.

    >>> inbound = Inbound("5/minute", key=str)
    >>> charges = Charges()
    >>> charges.admit(inbound, "ann").permit
    <Permit for 'ann': out>
    >>> charges.responded(200)["RateLimit-Policy"]
    '"window-0";q=5;w=60'
    >>> charges.end()
    """

    __slots__ = ("_away", "_taken", "refusal")

    def __init__(self) -> None:
        self.refusal: Refusal | None = None
        self._taken: list[tuple[Inbound, Permit]] = []
        self._away = False

    @property
    def permits(self) -> list[Permit]:
        """The permits, in the order of the limits."""
        return [permit for _, permit in self._taken]

    def admit(self, inbound: Inbound, request: Any, *, block: bool = True) -> Admission:
        """Ask one more limit, for a thread; a refusal gives everything back, unless it does not `block`."""
        return self._note(inbound, inbound.admit(request, away=self._away), block)

    async def admit_async(self, inbound: Inbound, request: Any, *, block: bool = True) -> Admission:
        """Ask one more limit, for a task."""
        return self._note(inbound, await inbound.admit_async(request, away=self._away), block)

    def _note(self, inbound: Inbound, admission: Admission, block: bool) -> Admission:
        self._away = self._away or admission.away
        if admission.refusal is not None:
            if block:
                self.refusal = admission.refusal
                self.cancel()
        elif admission.permit is not None:
            self._taken.append((inbound, admission.permit))
        return admission

    def cancel(self) -> None:
        """Give back what was taken: the request is not served."""
        for _, permit in self._taken:
            if permit.ended is None:
                permit.cancel()
        self._taken.clear()

    def responded(self, response: Any) -> dict[str, str]:
        """Give back what this response is not charged for; the headers that it gets."""
        charged = []
        for inbound, permit in self._taken:
            if inbound.deduct_when is None or inbound.deduct_when(response):
                charged.append((inbound, permit))
            elif permit.ended is None:
                permit.cancel()
        if self.refusal is not None:
            return {name: text for name, text in self.refusal.headers.items() if "RateLimit" in name}
        return _headers(charged)

    def headers(self) -> dict[str, str]:
        """The headers of a response that is charged for everything."""
        return _headers(self._taken)

    def end(self) -> None:
        """The response has ended."""
        for _, permit in self._taken:
            if permit.ended is None:
                permit.complete()


def _headers(taken: list[tuple[Inbound, Permit]]) -> dict[str, str]:
    """The headers of the limit with the least left."""
    told: list[tuple[float, float, int, Inbound, Status]] = []
    for inbound, permit in taken:
        status = inbound.status_of(permit)
        if status is not None:
            share = status.remaining / max(1, status.limit.capacity)
            told.append((status.retry_after, -share, len(told), inbound, status))
    if not told:
        return {}
    *_, inbound, status = max(told)
    return inbound.headers_of(status)
