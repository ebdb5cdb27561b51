"""A reserved permit that another process spends: what a task queue needs.

`reserve` promises a time to the process that asks. A task that is not allowed to run yet leaves that process: it goes
back to its broker, and any worker of the fleet may get it when its time has come. So the promise becomes a text that
travels with the task (`hand_over`), and the worker that gets it makes a permit of it again (`redeem`). The slot is the
ledger's all the while: no other caller is granted it, and nothing is taken twice.

The engine tells the time of the slot by its own clock, so the clocks of the machines need not agree. A pause in between
moves the slot. If the ledger was lost in between, or the slot is over, the promise is worth nothing, and redeeming it
raises `PermitExpired`. A promise is for one use. Nothing stops a broker that delivers a message twice from redeeming
it twice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from headway.engines.base import Redeem
from headway.errors import InvalidArgument, InvalidUse, PermitExpired
from headway.flows.shared import Send
from headway.limiter.shared_permits import SharedPermit, new_shared_permit
from headway.outcome import Outcome

if TYPE_CHECKING:
    from headway.flows.shared import Flow
    from headway.limiter.limiter import Limiter
    from headway.limiter.permits import Permit
    from headway.limiter.shared import SharedLimiter

_T = TypeVar("_T")

ACCEPTED = "what hand_over() has returned for a limiter of this name"


def hand_over(permit: Permit) -> str:
    """The promise of a reserved permit as a text, to be redeemed once and anywhere; the permit itself is done with."""
    if not isinstance(permit, SharedPermit):
        raise InvalidUse(
            "a permit of memory:// cannot leave its process", "Limiter(..., engine='redis://...')"
        )
    if permit._end:
        raise permit._finished(Outcome.COMPLETE)
    promise = permit._decision.hand_over()
    permit._end = Outcome.COMPLETE
    return json.dumps([permit._limiter.name, permit._asked, permit.cost, promise])


def lateness(permit: Permit) -> float:
    """For how many seconds the slot of a permit has been there, at most; below 0: it is still to come."""
    return permit._decision.late_ns() / 1e9 if isinstance(permit, SharedPermit) else -permit.delay


def redeem(limiter: Limiter, promise: str) -> Permit:
    """The permit of a promise, with the time until its slot in `delay`.

    Raises `PermitExpired` if the slot is over by more than the limit allows (`permit.expires_in`), or is lost.
    """
    shared = _shared(limiter)
    return shared.run(_redeeming(shared, promise))


async def redeem_async(limiter: Limiter, promise: str) -> Permit:
    """`redeem` for a task."""
    shared = _shared(limiter)
    return await shared.run_async(_redeeming(shared, promise))


def _shared(limiter: Limiter) -> SharedLimiter:
    if limiter._shared is None:
        raise InvalidUse("a promise is redeemed on a shared engine", "Limiter(..., engine='redis://...')")
    return limiter._shared


def _redeeming(shared: SharedLimiter, promise: str) -> Flow[Permit]:
    key, cost, promised = _read(promise, shared.name)
    keys, costs = shared._request(key, cost)
    decision = (yield Send(Redeem(keys, costs, promised))).decision
    permit = new_shared_permit(shared, decision, key, key)
    permit._slot = 1 if decision.wait_ns() else 0
    if decision.revoked:
        permit._end = Outcome.CANCEL  # not posted: there is no slot to give back
        raise PermitExpired(None)
    permit.check()
    return permit


def _read(promise: Any, name: str) -> tuple[Any, Any, str]:
    try:
        told, key, cost, promised = json.loads(promise)
    except (TypeError, ValueError):
        raise InvalidArgument("promise", promise, ACCEPTED) from None
    if told != name or not isinstance(promised, str):
        raise InvalidArgument("promise", promise, ACCEPTED)
    return key, cost, promised
