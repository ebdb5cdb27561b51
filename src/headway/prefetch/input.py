"""What a user gives to a prefetcher, checked: its options, and the answers of its fetch."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from headway.core.durations import MAX, count_of, span_of
from headway.core.predictor import Predictor
from headway.core.prefetch import PrefetchLedger
from headway.errors import InvalidArgument, InvalidUse

Span: TypeAlias = float | timedelta
Answer: TypeAlias = tuple[int, Span | None] | tuple[int, Span | None, Span | None]
"""`(granted, expires_in)`, or with the `retry_after` that the server named."""

FetchFunction: TypeAlias = Callable[[int], Answer] | Callable[[int], Awaitable[Answer]]

ANSWER = "(granted, expires_in) or (granted, expires_in, retry_after): a whole number, and seconds from 0 up or None"
DAY = 86_400_000_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """What makes a new ledger."""

    window_ns: int
    minimum: int
    maximum: int | None
    close_wait_ns: int
    timeout_ns: int
    optimistic: bool
    max_debt: int | None
    drift_ppb: int
    resolution_ns: int

    def open(self) -> PrefetchLedger:
        """A ledger that has fetched nothing yet."""
        return PrefetchLedger(
            Predictor(self.window_ns, self.minimum, self.close_wait_ns, self.maximum),
            self.timeout_ns,
            optimistic=self.optimistic,
            max_debt=self.max_debt,
            drift_ppb=self.drift_ppb,
            resolution_ns=self.resolution_ns,
        )


def is_async(fetch: Any) -> bool:
    """Whether calling `fetch` makes a coroutine; raises for what cannot be called.

    >>> is_async(lambda amount: (amount, 1.0)), is_async(lambda: None)
    (False, False)
    """
    if not callable(fetch):
        raise InvalidArgument("fetch", fetch, "a function of one amount that returns (granted, expires_in)")
    # An object with an async __call__ is one as well.
    return inspect.iscoroutinefunction(fetch) or inspect.iscoroutinefunction(getattr(fetch, "__call__", None))  # noqa: B004


def span(argument: str, value: Any, least_ns: int = 1) -> int:
    """A duration of at most a day, in nanoseconds."""
    ns = span_of(value)
    if ns is None or not least_ns <= ns <= DAY:
        least = "0" if least_ns == 0 else "1 ns" if least_ns == 1 else f"{least_ns / 1e9:g}"
        raise InvalidArgument(argument, value, f"seconds from {least} to a day, or a timedelta")
    return ns


def count(argument: str, value: Any, least: int, *, optional: bool = False) -> int:
    """A whole number."""
    number = count_of(value)
    if number is None or not least <= number <= MAX:
        accepted = f"an integer from {least} to 2**62"
        raise InvalidArgument(argument, value, f"{accepted}, or None" if optional else accepted)
    return number


def settings_of(given: dict[str, Any], clock: Any) -> Settings:
    """The options of a prefetcher; raises for what makes no sense."""
    minimum = count("min_prefetch", given["min_prefetch"], 1)
    maximum, max_debt, optimistic = given["max_prefetch"], given["max_debt"], given["optimistic"]
    if maximum is not None:
        maximum = count("max_prefetch", maximum, minimum, optional=True)
    if type(optimistic) is not bool:
        raise InvalidArgument("optimistic", optimistic, "True or False")
    if max_debt is not None:
        max_debt = count("max_debt", max_debt, 0, optional=True)
        if not optimistic:
            raise InvalidArgument(
                "max_debt", max_debt, "it with optimistic=True: a strict prefetcher owes nothing"
            )
    return Settings(
        window_ns=span("predict_window", given["predict_window"]),
        minimum=minimum,
        maximum=maximum,
        close_wait_ns=span("close_wait", given["close_wait"], 1_000_000),
        timeout_ns=span("fetch_timeout", given["fetch_timeout"], 1_000_000),
        optimistic=optimistic,
        max_debt=max_debt,
        drift_ppb=-(-int(clock.drift_ppm * 1e6) // 1000),
        resolution_ns=-(-int(clock.resolution * 1e12) // 1000),
    )


def read_answer(answer: Any) -> tuple[int, int | None, int | None]:
    """What the server has granted, for how long it is valid, and when it wants to be asked again, in nanoseconds.

    >>> read_answer((10, 0.5)), read_answer((0, None, 2))
    ((10, 500000000, None), (0, None, 2000000000))
    >>> read_answer(10)
    Traceback (most recent call last):
    headway.errors.InvalidArgument: answer=10 is not accepted; give (granted, expires_in) or (granted, expires_in, \
retry_after): a whole number, and seconds from 0 up or None
    """
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidUse(
            "fetch returned something to await, and is no `async def`", "Prefetcher(async_function)"
        )
    if not isinstance(answer, tuple | list) or len(answer) not in (2, 3):
        raise InvalidArgument("answer", answer, ANSWER)
    granted = count_of(answer[0])
    times = [None if value is None else span_of(value) for value in answer[1:]]
    for value, ns in zip(answer[1:], times, strict=True):
        if value is not None and (ns is None or ns < 0):
            raise InvalidArgument("answer", answer, ANSWER)
    if granted is None or not 0 <= granted <= MAX:
        raise InvalidArgument("answer", answer, ANSWER)
    valid_ns, retry_ns = times[0], times[1] if len(times) == 2 else None
    return granted, valid_ns, retry_ns if retry_ns is None else min(retry_ns, DAY)
