"""Waiting for a shared ledger, written once: what happens, without doing it.

The flows of `headway.flows` ask a ledger in this process, which answers at once. Here the ledger is elsewhere, so
that a question is an effect too. There are four ways to wait: to stand in the ledger's queue until one is called, to
sleep until a slot that was promised, to sit a pause out in which nothing is promised, and to come back later because
too many slots are promised already.

An errand hears of what went wrong with an effect as an exception where it yielded it, and may go on in another way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from headway.engines.redis.client.requests import Peek, PollQueue
from headway.engines.redis.script.protocol import DENIED, GRANTED, REFUSED, STANDING, TICK
from headway.errors import HeadwayError
from headway.flows.local import DeadlinePassed

if TYPE_CHECKING:
    from headway.engines.redis.client.requests import Acquire, Request

_T = TypeVar("_T")


class Send(NamedTuple):
    """Send a request to its ledger, alone or with others, and wait for the answer."""

    request: Request


class Park(NamedTuple):
    """Sleep until the request's bell rings, or until `until` (None: only the bell); the answer is the time."""

    request: Request
    until: int | None


Flow: TypeAlias = Generator[Send | Park, int, _T]


class QueueFull(DeadlinePassed):
    """More wait already than `max_waiting`."""


def acquire_flow(
    acquire: Acquire, deadline: int | None, most: int | None, again: Callable[[], Acquire]
) -> Flow[Acquire]:
    """From the ledger's first answer to `ask` until a permit may be spent, which is then returned.

    Raises `DeadlinePassed` when `deadline` comes first, and at once when `most` wait already. Whatever ends it earlier (a
    cancellation, Ctrl-C) gives back what it has: a place in the queue, or a slot.
    """
    registry = acquire.ledger.registry
    waiters = registry.waiters
    try:
        if most is not None and len(waiters) >= most:
            raise QueueFull
        waiters.add(acquire)
        while not (yield from served(acquire, deadline)):
            before, acquire = acquire, again()
            waiters.add(acquire)
            waiters.discard(before)
            yield Send(acquire)
        registry.check_open()
    except DeadlinePassed as late:
        acquire.withdraw()
        yield from final_status(acquire)
        late.call = acquire  # the one that knows why, if it was asked anew meanwhile
        raise
    except BaseException:
        acquire.withdraw()
        raise
    finally:
        waiters.discard(acquire)
    return acquire


def final_status(acquire: Acquire) -> Flow[None]:
    """How things stand, for who gave up: in the queue one is only told when to ask again."""
    if acquire.rows or acquire.verdict == REFUSED:
        return
    peek = Peek(acquire.ledger, acquire.costs)
    try:
        yield Send(peek)
    except HeadwayError:
        return  # it is late already, and that is what is said
    acquire.rows, acquire.quarantine = peek.rows, peek.quarantine


def served(acquire: Acquire, deadline: int | None) -> Flow[bool]:
    """Until the permit may be spent; False where one has to ask anew."""
    acquire.ledger.registry.check_open()
    if acquire.verdict == REFUSED:
        raise DeadlinePassed
    if acquire.verdict == STANDING:
        yield from wait_in_queue(acquire, deadline)
    if acquire.verdict == GRANTED and not acquire.void:
        yield from sleep_to_slot(acquire)
    if acquire.verdict == GRANTED and not acquire.void:
        return True
    if acquire.verdict == DENIED:
        yield from (wait_out_pause if acquire.pause > 0 else back_off)(acquire, deadline)
    acquire.ledger.registry.check_open()
    return False


def wait_in_queue(acquire: Acquire, deadline: int | None) -> Flow[None]:
    """In the ledger's queue, until called. A message may get lost, so the ledger is asked when it should have come."""
    while acquire.verdict == STANDING and not acquire.void:
        until = acquire.ready if deadline is None else min(acquire.ready, deadline)
        now = yield Park(acquire, until)
        if acquire.verdict != STANDING or acquire.void:
            return
        if deadline is not None and now >= deadline:
            raise DeadlinePassed
        if now >= acquire.ready:
            yield Send(PollQueue(acquire.ledger))


def sleep_to_slot(acquire: Acquire) -> Flow[None]:
    """Until the promised time; who comes too late has wasted it, and what it meant may be another's by now."""
    ledger = acquire.ledger
    now = acquire.replied_at
    if acquire.slot > now:
        ledger.sleep(acquire)
        try:
            registry = ledger.registry
            sure = registry.sure_for(ledger)
            # A pause moves every promised slot.
            while not acquire.void and now < (slot := acquire.slot + ledger.moved(acquire)):
                far = slot - sure
                now = yield Park(acquire, slot if far <= now else far)
                if acquire.void or now < min(far, slot):  # type: ignore[redundant-expr] # a loss may come at any time
                    continue
                # Nobody could look after us: is the promise still true? Or it was given too long ago to know the time
                # by.
                if now - ledger.replied_at > min(registry.lease_ns, sure):
                    now = yield Send(PollQueue(ledger))
                registry.refine(acquire)
        finally:
            ledger.sleepers.discard(acquire)
    if acquire.void:
        acquire.give_back(again=True)  # once; whoever recalled it may have come too late for that
    elif now > acquire.expires + ledger.moved(acquire):
        acquire.give_back()
        acquire.void = True


def wait_out_pause(acquire: Acquire, deadline: int | None) -> Flow[None]:
    """The whole limiter is paused, and a key's ledger promises nothing then: until that is over, or we are told."""
    ledger = acquire.ledger
    registry = ledger.registry
    if (
        deadline is not None
        and acquire.replied_at + registry.stretched(max(row[1] for row in acquire.rows)) > deadline
    ):
        raise DeadlinePassed
    now = acquire.replied_at
    # Not stretched: who comes too early, as clocks differ, is told how little is left.
    acquire.slot = acquire.expires = now + int(acquire.pause) * TICK
    ledger.sleep(acquire)
    try:
        while now < acquire.slot and not acquire.void:
            now = yield Park(acquire, acquire.slot)
            registry.check_open()
    finally:
        ledger.sleepers.discard(acquire)


def back_off(acquire: Acquire, deadline: int | None) -> Flow[None]:
    """Too many slots are reserved: come back when one is free, not all at the same moment (full jitter)."""
    wait_ns, spread_ns = acquire.ledger.registry.backoff(acquire)
    if wait_ns is None:
        raise DeadlinePassed
    until = acquire.replied_at + wait_ns + int(random.random() * spread_ns)
    if deadline is not None and until > deadline:
        raise DeadlinePassed
    now = acquire.replied_at
    while now < until:
        now = yield Park(acquire, until)
        acquire.ledger.registry.check_open()
