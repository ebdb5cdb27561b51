"""A module as users write it: limiters and throttled functions at its top, found again by name in other processes."""

from __future__ import annotations

import os

import headway
from headway import Limiter, throttle

limiter = Limiter("1000/s", name="programs.worker")
few = Limiter("3/hour")


@throttle("1000/s")
def double(number: int) -> int:
    """Twice as much."""
    return 2 * number


@throttle("1000/s")
async def double_later(number: int) -> int:
    return 2 * number


@throttle("1000/s")
def count(to: int):
    yield from range(to)


@limiter
def shared(number: int) -> int:
    return number + 1


class Client:
    def __init__(self, base: int) -> None:
        self.base = base

    @throttle("1000/s")
    def add(self, number: int) -> int:
        return self.base + number

    @classmethod
    @throttle("1000/s")
    def make(cls, base: int) -> Client:
        return cls(base)

    @staticmethod
    @throttle("1000/s")
    def half(number: int) -> float:
        return number / 2


class Adder:
    def __call__(self, number: int) -> int:
        return number + 1


def take_all(_: object = None) -> tuple[int, bool, int]:
    """Take until `few` is empty: the process id, its form, how many it took."""
    taken = 0
    while few.try_acquire():
        taken += 1
    return os.getpid(), headway.compiled, taken


def fail(number: int) -> int:
    empty = Limiter("1/hour")
    empty.acquire("ann")
    empty.acquire("ann", timeout=number)
    return number
