"""`Status.headers()`: what each kind of limit says, and that no two headers contradict each other."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import AllOf, Bucket, Concurrency, FixedWindow, Limiter, Remote, Spacing, Window
from headway.testing import ManualClock

pytestmark = pytest.mark.both_forms


@pytest.fixture
def clock():
    return ManualClock()


@pytest.mark.parametrize(
    ("limit", "taken", "headers"),
    [
        (
            "5/minute",
            0,
            {
                "RateLimit": '"window-0";r=5;t=0',
                "RateLimit-Policy": '"window-0";q=5;w=60',
                "X-RateLimit-Limit": "5",
                "X-RateLimit-Remaining": "5",
                "X-RateLimit-Reset": "0",
            },
        ),
        (
            "5/s; 5/1500ms",
            5,
            {
                "RateLimit": '"window-1";r=0;t=2',
                "RateLimit-Policy": '"window-0";q=5;w=1, "window-1";q=10;w=2',
                "X-RateLimit-Limit": "5",
                "X-RateLimit-Remaining": "0",
                "X-RateLimit-Reset": "2",
                "Retry-After": "2",
            },
        ),
        (
            "10/s burst 3",
            3,
            {
                "RateLimit": '"bucket-0";r=0;t=1',
                "RateLimit-Policy": '"bucket-0";q=13;w=1',
                "X-RateLimit-Limit": "3",
                "X-RateLimit-Remaining": "0",
                "X-RateLimit-Reset": "1",
                "Retry-After": "1",
            },
        ),
        (
            "2 concurrent",
            2,
            {
                "RateLimit": '"concurrency-0";r=0;t=1',
                "RateLimit-Policy": '"concurrency-0";q=2;qu="concurrent-requests"',
                "X-RateLimit-Limit": "2",
                "X-RateLimit-Remaining": "0",
                "X-RateLimit-Reset": "1",
                "Retry-After": "1",
            },
        ),
        (
            "2 concurrent",
            1,
            {
                "RateLimit": '"concurrency-0";r=1',
                "RateLimit-Policy": '"concurrency-0";q=2;qu="concurrent-requests"',
                "X-RateLimit-Limit": "2",
                "X-RateLimit-Remaining": "1",
            },
        ),
        (
            "0/s",
            0,
            {
                "RateLimit": '"window-0";r=0',
                "RateLimit-Policy": '"window-0";q=0;w=1',
                "X-RateLimit-Limit": "0",
                "X-RateLimit-Remaining": "0",
            },
        ),
    ],
)
def test_headers_of_each_kind(clock, limit, taken, headers):
    limiter = Limiter(limit, clock=clock)
    permit = limiter.acquire(cost=taken) if taken else None
    status = limiter.peek()
    if status.retry_after:
        status = limiter.try_acquire().status
    assert status.headers() == headers
    if permit:
        permit.complete()


def test_a_pause_is_told_by_all_headers(clock):
    limiter = Limiter("5/s", clock=clock)
    limiter.pause(30)
    headers = limiter.try_acquire().status.headers()
    assert headers["RateLimit"] == '"window-0";r=0;t=30'
    assert (headers["X-RateLimit-Reset"], headers["Retry-After"]) == ("30", "30")


def test_looking_after_the_last_grant_gives_headers_for_a_success(clock):
    limiter = Limiter("1/minute", clock=clock)
    limiter.acquire()
    assert "Retry-After" not in limiter.peek().headers()
    assert limiter.peek().headers()["RateLimit"] == '"window-0";r=0;t=60'
    assert limiter.try_acquire().status.headers()["Retry-After"] == "60"


# -- no contradictions ---------------------------------------------------------------------------------------------

counts = st.integers(1, 6)
spans = st.sampled_from(["250ms", "s", "1500ms", "7s", "minute"])
remotes = st.sampled_from([None, Remote(), Remote(max_transit=1)])
single = st.one_of(
    st.builds(lambda n, per, remote: Window(n, per=per, remote=remote), counts, spans, remotes),
    st.builds(lambda n, per, burst: Bucket((n, per), burst=burst), counts, spans, counts),
    st.builds(Spacing, spans),
    st.builds(lambda n, per: FixedWindow(n, per=per), counts, spans),
    st.builds(Concurrency, counts),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("try"), st.integers(1, 3)),
        st.tuples(st.just("end"), st.sampled_from(["complete", "cancel", "abandon"])),
        st.tuples(st.just("sleep"), st.sampled_from([0.01, 0.3, 1, 8])),
        st.tuples(st.just("pause"), st.sampled_from([0, 0.5, 3])),
    ),
    max_size=12,
)


def number(text, name):
    found = re.search(rf";{name}=(\d+)", text)
    return None if found is None else int(found[1])


def check(status, *, denied):
    """What the headers of any status have to fulfil."""
    headers = status.headers()
    left, wait = number(headers["RateLimit"], "r"), number(headers["RateLimit"], "t")
    reset, retry = headers.get("X-RateLimit-Reset"), headers.get("Retry-After")
    assert left == int(headers["X-RateLimit-Remaining"]) <= int(headers["X-RateLimit-Limit"])
    assert (None if reset is None else int(reset)) == wait
    assert ("Retry-After" in headers) == (denied and math.isfinite(status.retry_after))
    if retry is not None:
        assert int(retry) == wait >= max(1, status.retry_after)
    if status.retry_after == 0:
        assert retry is None
    for policy in headers["RateLimit-Policy"].split(", "):
        assert number(policy, "q") >= 0
        assert number(policy, "w") != 0
    assert left <= max(number(policy, "q") for policy in headers["RateLimit-Policy"].split(", "))


@settings(max_examples=200)
@given(st.lists(single, min_size=1, max_size=3), steps)
def test_no_header_contradicts_another(limits, steps):
    clock = ManualClock()
    limiter = Limiter(AllOf(*limits), clock=clock)
    out = []
    for step, what in steps:
        check(limiter.peek(), denied=False)
        if step == "try":
            cost = min(what, *(limit.capacity for limit in limits), what)
            answer = limiter.try_acquire(cost=cost)
            if answer:
                out.append(answer)
            else:
                check(answer.status, denied=True)
                if answer.status.exact:
                    # What comes back when Retry-After says so is not denied again.
                    clock.advance(int(answer.status.headers()["Retry-After"]))
                    again = limiter.try_acquire(cost=cost)
                    assert again
                    out.append(again)
        elif step == "end" and out:
            getattr(out.pop(), what)()
        elif step == "sleep":
            clock.advance(what)
        elif step == "pause":
            limiter.pause(what)
    for permit in out:
        permit.cancel()


@settings(max_examples=100)
@given(single.filter(lambda limit: not isinstance(limit, Concurrency | FixedWindow)), st.integers(0, 3))
def test_a_policy_is_the_most_that_passes(limit, rest):
    """A caller that takes whatever there is, after a rest, never gets more than `q` in any `w` seconds."""
    clock = ManualClock()
    limiter = Limiter(limit, clock=clock)
    policy = limiter.peek().headers()["RateLimit-Policy"]
    most, window = number(policy, "q"), number(policy, "w")
    clock.advance(rest)
    granted: list[int] = []
    while len(granted) <= 3 * most:
        answer = limiter.try_acquire()
        if answer:
            answer.complete()
            granted.append(clock.now())
        else:
            clock.advance(answer.retry_after)
    for i in range(len(granted) - most):
        assert granted[i + most] - granted[i] >= window * 10**9
