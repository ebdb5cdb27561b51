"""The headers of a limit: a mapping, pairs and a block say the same, of a status and of what each rule said."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import Limiter, limit_headers
from headway.core.limits import Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.core.unlimited import Unlimited
from headway.status import Snapshot, rows_block, rows_pairs, seconds, status_of
from headway.testing import ManualClock

pytestmark = pytest.mark.both_forms

FOREVER = 1 << 62
LIMITS: list[Limit] = [
    Window(2, per=60),
    Window(0, per=1),
    Bucket("10/s", burst=3),
    Spacing(0.25),
    Concurrency(5),
    FixedWindow(100, per="hour"),
    Window(1 << 61, per=1),
    Unlimited(),
]
times = st.one_of(st.just(0), st.integers(0, 10**12), st.just(FOREVER))
rows = st.lists(
    st.tuples(
        st.sampled_from(LIMITS),
        st.integers(0, 1 << 62),
        times,
        times,
        st.integers(0, 9),
        st.integers(0, 9),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)
LEGACY = {b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset"}


def lowered(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


@given(rows, st.booleans())
def test_pairs_and_block_say_what_the_mapping_says(found: Snapshot, denied: bool) -> None:
    status = status_of(found, denied=denied)
    told = lowered(status.headers())
    assert sorted(status.header_pairs()) == sorted(told)
    assert status.header_pairs(legacy=False) == [pair for pair in told if pair[0] not in LEGACY]
    lines = status.header_block().split(b"\r\n")
    assert lines.pop() == b""
    assert [tuple(line.split(b": ", 1)) for line in lines] == told
    assert rows_pairs(found, denied=denied) == status.header_pairs()
    assert rows_block(found, denied=denied) == status.header_block()


@given(rows, st.booleans())
def test_the_times_agree_with_the_status(found: Snapshot, denied: bool) -> None:
    status = status_of(found, denied=denied)
    headers = status.headers()
    wait = status.retry_after or status.reset_after
    if math.isinf(wait):
        assert "X-RateLimit-Reset" not in headers
        assert "Retry-After" not in headers
        assert ";t=" not in headers["RateLimit"]
        return
    reset = int(headers["X-RateLimit-Reset"])
    assert reset - 1 < wait <= reset
    assert headers["RateLimit"].endswith(f";t={reset}")
    assert headers.get("Retry-After") == (str(reset) if denied and status.retry_after else None)


@given(*[st.one_of(times, st.integers(0, FOREVER), st.integers((1 << 53) - 2, (1 << 53) + 2))] * 2)
def test_whole_seconds_of_nanoseconds_are_those_of_seconds(wait: int, reset: int) -> None:
    assert limit_headers.until_of_ns(wait, reset) == limit_headers.until(seconds(wait), seconds(reset))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "limit",
    ["5/minute", "3 concurrent", "60/minute burst 2", "5/minute; 100/hour", "1/hour", "1000000000000/s"],
)
def test_the_headers_of_a_permit_are_those_of_its_status(limit: str, legacy: bool) -> None:
    clock = ManualClock()
    limiter = Limiter(limit, remote=False, clock=clock)
    for _ in range(3):
        permit = limiter.try_acquire("alice")
        if permit:
            clock.advance(0.3)
            assert permit._pairs(legacy) == permit.status.header_pairs(legacy=legacy)
            limiter.pause(1000, "alice")
            assert permit._pairs(legacy) == permit.status.header_pairs(legacy=legacy)
            limiter.pause(0, "alice")
            permit.complete()
            assert permit._pairs(legacy) == permit.status.header_pairs(legacy=legacy)


def test_texts_are_kept_for_a_bounded_number_of_limits() -> None:
    for count in range(1, 3 * limit_headers.KEPT):
        limit = Window(count, per=60)
        assert limit_headers.texts_of(limit).policies == f'"window-0";q={count};w=60'
        both = limit_headers.texts_of_several([limit, LIMITS[0]], 1)
        assert both.policies == f'"window-0";q={count};w=60, "window-1";q=2;w=60'
    assert len(limit_headers._single) <= limit_headers.KEPT
    assert len(limit_headers._several) <= limit_headers.KEPT


@pytest.mark.parametrize(
    "limit", ["5/minute", "3 concurrent", "60/minute burst 2", "5/minute; 100/hour", "1/s"]
)
def test_a_permit_says_the_same_with_and_without_the_lock(limit: str) -> None:
    """What is read from the ledger directly is what the store says; also while a request waits or is paused."""
    limiter = Limiter(limit, remote=False)
    permit = limiter.acquire("alice")
    store = permit._store
    rules = len(store.keyed_ledgers)

    def behind_the_lock() -> Snapshot:
        return store.snapshot(("alice",) * rules, (1,) * rules)

    def same(one: Snapshot, other: Snapshot) -> bool:
        # Times run on between the two looks.
        return all(
            a[:2] == b[:2] and a[4:] == b[4:] and abs(a[2] - b[2]) < 30e9 and abs(a[3] - b[3]) < 30e9
            for a, b in zip(one, other, strict=True)
        )

    assert same(permit._rows(), behind_the_lock())
    limiter.pause(1000)
    assert permit._rows()[0][2] > 900e9
    assert same(permit._rows(), behind_the_lock())
    limiter.pause(0)
    permit.complete()
    assert permit._rows()[0][0] is store.first.rule.limit
    limiter.close()
