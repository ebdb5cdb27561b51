"""What a type checker sees of a prefetcher."""

from datetime import timedelta
from typing import assert_type

from headway import Admission, Limiter, Prefetcher, PrefetcherStats, Window


def fetch(amount: int) -> tuple[int, float]:
    return amount, 60.0


async def fetch_async(amount: int) -> tuple[int, timedelta | None, float]:
    return amount, None, 1.0


def wrong(amount: str) -> tuple[int, float]:
    return int(amount), 60.0


prefetcher = Prefetcher(fetch, predict_window=timedelta(seconds=1), on_engine_error=Limiter("10/s"))
Prefetcher(fetch_async, 2.0, 20, 1.0, optimistic=True, max_debt=5, on_engine_error=Window(5, per=1))
Prefetcher(wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def blocking() -> None:
    assert_type(prefetcher.try_acquire(), Admission)
    assert_type(prefetcher.acquire(2, timeout=timedelta(seconds=1)), Admission)
    assert_type(prefetcher.stats(), PrefetcherStats)
    prefetcher.acquire("key")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def suspending() -> None:
    assert_type(await prefetcher.try_acquire_async(), Admission)
    assert_type(await prefetcher.acquire_async(cost=2, timeout=None), Admission)
    await prefetcher.close_async()
