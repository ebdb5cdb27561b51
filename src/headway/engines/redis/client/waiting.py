"""What a waiter does next, by the last answer of its ledger.

A request that was not granted at once waits in one of four ways. It stands in the ledger's queue until it is woken; a
message may get lost, so the background worker polls for all waiters. It sleeps until a promised slot; the
promise may be recalled, and the clocks of client and server drift apart, so a long sleep ends early and the slot is
computed anew. It sits out a pause of the whole limiter, in which a key's ledger promises nothing. Or too many slots are
reserved already, and it comes back later, with full jitter so that not all waiters come back at once.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headway.engines.base import Action, Step
from headway.engines.redis.script.protocol import GRANTED, REFUSED, STANDING, TICK

if TYPE_CHECKING:
    from headway.engines.redis.client.requests import Acquire

SPEND = Step(Action.SPEND)
CHECK = Step(Action.CHECK)
ACQUIRE_AGAIN = Step(Action.ACQUIRE_AGAIN)
GIVE_UP = Step(Action.GIVE_UP)


def next_step(acquire: Acquire) -> Step:
    """The next step of a request that has been answered."""
    if acquire.verdict == GRANTED:
        return _until_slot(acquire)
    if acquire.verdict == STANDING:
        return _in_queue(acquire)
    if acquire.verdict == REFUSED:
        return GIVE_UP
    return _after_denial(acquire)


def _in_queue(acquire: Acquire) -> Step:
    """The background worker polls for all waiters of a ledger. A waiter does so by itself only where no worker has for
    long, as in a process that may have no more threads."""
    if acquire.void:
        return ACQUIRE_AGAIN
    ledger = acquire.ledger
    lease = ledger.registry.lease_ns
    now = ledger.registry.clock.now()
    if now >= acquire.resume_at > 0 and now - ledger.visited > lease // 2:
        ledger.visited = now
        acquire.resume_at = 0
        return CHECK
    if now >= acquire.resume_at:
        acquire.resume_at = now + lease * 2 // 3
    return Step(Action.WAIT, acquire.resume_at - now)


def _until_slot(acquire: Acquire) -> Step:
    ledger = acquire.ledger
    registry = ledger.registry
    now = registry.clock.now()
    if not acquire.void and not acquire.asleep and now < acquire.slot:
        acquire.sleep()
    if acquire.asleep and not acquire.void:
        sure = registry.sure_for(ledger)
        slot = acquire.slot + ledger.moved(acquire)
        if now < slot - sure:
            acquire.checked = False
            return Step(Action.WAIT, slot - sure - now)
        # The worker may have been unable to renew: is the promise still true? Or the promise is so old that the clocks
        # may differ by a good part of the allowance.
        if not acquire.checked and now - ledger.replied_at > min(registry.lease_ns, sure):
            acquire.checked = True
            return CHECK
        registry.refine(acquire)
        left = acquire.slot + ledger.moved(acquire) - now
        if left > 0:
            return Step(Action.WAIT, left)
    # First out of the sleepers, then the look: a recall that comes now either finds no sleeper or is seen here.
    acquire.wake_up()
    if acquire.void:
        acquire.give_back(again=True)  # once; the recall itself may have come too late for that
        return ACQUIRE_AGAIN
    if now > acquire.expires + ledger.moved(acquire):
        # A waiter that comes after `expires` has lost its slot: the capacity may have been granted again.
        acquire.give_back()
        acquire.void = True
        return ACQUIRE_AGAIN
    return SPEND


def _after_denial(acquire: Acquire) -> Step:
    registry = acquire.ledger.registry
    now = registry.clock.now()
    if not acquire.resume_at:
        if acquire.pause > 0:
            # Not stretched: a waiter that comes too early, as clocks differ, is told how little is left.
            acquire.resume_at = acquire.slot = acquire.expires = (
                acquire.replied_at + int(acquire.pause) * TICK
            )
            acquire.sleep()
        else:
            wait_ns, spread_ns = registry.backoff(acquire)
            if wait_ns is None:
                return GIVE_UP
            acquire.resume_at = acquire.replied_at + wait_ns + int(random.random() * spread_ns)
    left = acquire.resume_at - now
    if left <= 0 or acquire.void:
        acquire.wake_up()
        return ACQUIRE_AGAIN
    least = left
    if acquire.pause > 0:
        least = acquire.replied_at + registry.stretched(max(row[1] for row in acquire.raw_rows)) - now
    return Step(Action.WAIT, left, least)
