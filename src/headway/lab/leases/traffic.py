"""What the clients of a simulated fleet are asked for: times in nanoseconds, without end."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from headway.lab.clocks import BILLION

Traffic = Iterator[int]


def even(per_second: float, start: int = 0) -> Traffic:
    """One request after the other at equal distances; exact over whole seconds for rates of a few decimals."""
    scaled = round(per_second * 10**6)
    k = 0
    while scaled > 0:
        yield start + k * BILLION * 10**6 // scaled
        k += 1


def split(per_second: float, weights: tuple[int, ...]) -> list[Traffic]:
    """A rate divided among clients by weight; the phases of the clients are spread over their own intervals."""
    whole = sum(weights)
    rates = [per_second * weight / whole for weight in weights]
    return [even(rate, int(i * BILLION / len(rates) / rate)) for i, rate in enumerate(rates)]


def poisson(per_second: float, rng: Random) -> Traffic:
    """Requests that know nothing of each other."""
    at = 0.0
    while per_second > 0:
        at += rng.expovariate(per_second)
        yield int(at * BILLION)


def switching(per_second: float, side: int, turn_ns: int = BILLION) -> Traffic:
    """All demand in the even turns (side 0) or in the odd ones (side 1)."""
    for at in even(per_second):
        if at // turn_ns % 2 == side:
            yield at


def zipf(per_second: float, clients: int) -> list[float]:
    """Rates of a fleet in which the k-th client has 1/k of the first one's."""
    whole = sum(1 / k for k in range(1, clients + 1))
    return [per_second / k / whole for k in range(1, clients + 1)]
