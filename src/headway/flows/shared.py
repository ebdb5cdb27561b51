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

from headway.engines.redis.requests import Look, Poll
from headway.engines.redis.words import DENIED, GRANTED, REFUSED, STANDING, TICK
from headway.errors import HeadwayError
from headway.flows import Late

if TYPE_CHECKING:
    from headway.engines.redis.requests import Ask, Request

_T = TypeVar("_T")


class Say(NamedTuple):
    """Send a request to its ledger, alone or with others, and wait for the answer."""

    request: Request


class Nap(NamedTuple):
    """Sleep until the request's bell rings, or until `until` (None: only the bell); the answer is the time."""

    request: Request
    until: int | None


Errand: TypeAlias = Generator[Say | Nap, int, _T]


class TooMany(Late):
    """More wait already than `max_waiting`."""


def obtain(ask: Ask, deadline: int | None, most: int | None, again: Callable[[], Ask]) -> Errand[Ask]:
    """From the ledger's first answer to `ask` until a permit may be spent, which is then returned.

    Raises `Late` when `deadline` comes first, and at once when `most` wait already. Whatever ends it earlier (a
    cancellation, Ctrl-C) gives back what it has: a place in the queue, or a slot.
    """
    spec = ask.account.spec
    waiters = spec.waiters
    try:
        if most is not None and len(waiters) >= most:
            raise TooMany
        waiters.add(ask)
        while not (yield from served(ask, deadline)):
            before, ask = ask, again()
            waiters.add(ask)
            waiters.discard(before)
            yield Say(ask)
        spec.check_open()
    except Late:
        ask.withdraw()
        yield from look_back(ask)
        raise
    except BaseException:
        ask.withdraw()
        raise
    finally:
        waiters.discard(ask)
    return ask


def look_back(ask: Ask) -> Errand[None]:
    """How things stand, for who gave up: in the queue one is only told when to ask again."""
    if ask.rows or ask.verdict == REFUSED:
        return
    look = Look(ask.account, ask.costs)
    try:
        yield Say(look)
    except HeadwayError:
        return  # it is late already, and that is what is said
    ask.rows, ask.quarantine = look.rows, look.quarantine


def served(ask: Ask, deadline: int | None) -> Errand[bool]:
    """Until the permit may be spent; False where one has to ask anew."""
    ask.account.spec.check_open()
    if ask.verdict == REFUSED:
        raise Late
    if ask.verdict == STANDING:
        yield from stand(ask, deadline)
    if ask.verdict == GRANTED and not ask.void:
        yield from sleep_to_slot(ask)
    if ask.verdict == GRANTED and not ask.void:
        return True
    if ask.verdict == DENIED:
        yield from (sit_out if ask.pause > 0 else back_off)(ask, deadline)
    ask.account.spec.check_open()
    return False


def stand(ask: Ask, deadline: int | None) -> Errand[None]:
    """In the ledger's queue, until called. A message may get lost, so the ledger is asked when it should have come."""
    while ask.verdict == STANDING and not ask.void:
        until = ask.ready if deadline is None else min(ask.ready, deadline)
        now = yield Nap(ask, until)
        if ask.verdict != STANDING or ask.void:
            return
        if deadline is not None and now >= deadline:
            raise Late
        if now >= ask.ready:
            yield Say(Poll(ask.account))


def sleep_to_slot(ask: Ask) -> Errand[None]:
    """Until the promised time; who comes too late has wasted it, and what it meant may be another's by now."""
    account = ask.account
    now = ask.heard
    if ask.slot > now:
        account.sleep(ask)
        try:
            spec = account.spec
            sure = spec.sure_for(account)
            # A pause moves every promised slot.
            while not ask.void and now < (slot := ask.slot + account.moved(ask)):
                far = slot - sure
                now = yield Nap(ask, slot if far <= now else far)
                if ask.void or now < min(far, slot):  # type: ignore[redundant-expr] # a loss may come at any time
                    continue
                # Nobody could look after us: is the promise still true? Or it was given too long ago to know the time
                # by.
                if now - account.heard > min(spec.lease_ns, sure):
                    now = yield Say(Poll(account))
                spec.refine(ask)
        finally:
            account.sleepers.discard(ask)
    if ask.void:
        ask.give_back(again=True)  # once; whoever recalled it may have come too late for that
    elif now > ask.expires + account.moved(ask):
        ask.give_back()
        ask.void = True


def sit_out(ask: Ask, deadline: int | None) -> Errand[None]:
    """The whole limiter is paused, and a key's ledger promises nothing then: until that is over, or we are told."""
    account = ask.account
    spec = account.spec
    if deadline is not None and ask.heard + spec.stretched(max(row[1] for row in ask.rows)) > deadline:
        raise Late
    now = ask.heard
    # Not stretched: who comes too early, as clocks differ, is told how little is left.
    ask.slot = ask.expires = now + int(ask.pause) * TICK
    account.sleep(ask)
    try:
        while now < ask.slot and not ask.void:
            now = yield Nap(ask, ask.slot)
            spec.check_open()
    finally:
        account.sleepers.discard(ask)


def back_off(ask: Ask, deadline: int | None) -> Errand[None]:
    """Too many slots are reserved: come back when one is free, not all at the same moment (full jitter)."""
    wait_ns, spread_ns = ask.account.spec.backoff(ask)
    if wait_ns is None:
        raise Late
    until = ask.heard + wait_ns + int(random.random() * spread_ns)
    if deadline is not None and until > deadline:
        raise Late
    now = ask.heard
    while now < until:
        now = yield Nap(ask, until)
        ask.account.spec.check_open()
