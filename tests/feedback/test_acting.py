"""What a limiter does about what the remote says; in virtual time."""

# mypy: disable-error-code="union-attr"

import asyncio
import logging

import httpx
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import (
    AllOf,
    Bucket,
    Concurrency,
    FixedWindow,
    InvalidArgument,
    InvalidKey,
    Limiter,
    Spacing,
    Window,
)
from headway.core.backoff import FIRST, Backoff
from headway.core.follow import Stated, followed
from headway.feedback import read
from headway.limiter.feedback import LONGEST_BACKOFF, MAX_KEYS, MOST_SPREAD, Heard, Kept, Reactions
from headway.testing import ManualClock

S = 10**9


@pytest.fixture
def clock():
    return ManualClock()


def paused_for(limiter, key=None):
    denied = limiter.try_acquire(key)
    return 0 if denied else denied.retry_after


# -- pauses ---------------------------------------------------------------------------------------------------


def test_a_refusal_with_a_wait_pauses_its_key_for_that_time_and_little_more(clock):
    limiter = Limiter("100/minute", clock=clock)
    said = limiter.feedback((429, {"Retry-After": "30"}), "alice")
    assert said.refused
    assert said.wait == 30
    assert 30 <= paused_for(limiter, "alice") <= 30 + MOST_SPREAD
    assert paused_for(limiter, "bob") == 0
    clock.advance(31)
    assert paused_for(limiter, "alice") == 0


def test_a_shorter_wait_does_not_cut_a_longer_one(clock):
    limiter = Limiter("100/minute", clock=clock)
    limiter.feedback((429, {"Retry-After": "30"}))
    limiter.feedback((429, {"Retry-After": "1"}))
    assert paused_for(limiter) >= 30


def test_the_last_permit_of_the_remote_pauses_until_its_reset(clock):
    limiter = Limiter("100/minute", clock=clock)
    limiter.feedback((200, {"RateLimit": '"default";r=0;t=12'}))
    assert 12 <= paused_for(limiter) <= 13.2


def test_an_answer_that_says_nothing_changes_nothing(clock):
    limiter = Limiter("100/minute", clock=clock)
    assert limiter.feedback((200, {"Content-Type": "text/html"})) is None
    assert paused_for(limiter) == 0


def test_a_refusal_of_everything_pauses_every_key(clock):
    limiter = Limiter("100/minute", clock=clock)
    limiter.feedback((429, {"Retry-After": "5", "X-RateLimit-Global": "true"}), "alice", profile="discord")
    assert paused_for(limiter, "bob") >= 5


def test_a_task_is_paused_too(clock):
    limiter = Limiter("100/minute", clock=clock)
    asyncio.run(limiter.feedback_async((503, [("Retry-After", "7")]), "alice"))
    assert paused_for(limiter, "alice") >= 7


def test_a_refusal_is_told_as_an_event(clock):
    seen = []
    limiter = Limiter("100/minute", clock=clock, on_event=lambda event: seen.append((event.kind, event.key)))
    limiter.feedback((429, {"Retry-After": "7"}), "alice")
    assert seen == [("paused", "alice")]


# -- back-off -------------------------------------------------------------------------------------------------


def test_a_refusal_without_a_wait_backs_off_further_each_time_until_a_success():
    reactions, now = Reactions(draw=lambda: 0.5), 0
    pauses = []
    for status in (429, 429, 503, 429, 200, 429):
        reaction = reactions.to(heard(status), None, now, None)
        pauses.append(reaction.seconds)
        now += 100 * S
    assert pauses == [0.5, 1, 2, 4, 0, 0.5]


def heard(status, **headers):
    return Heard(read(status, headers, now=0), status)


def test_two_hundred_refusals_at_once_are_one():
    reactions = Reactions(draw=lambda: 0.5)
    pauses = [reactions.to(heard(429), "k", at * 1000, None).seconds for at in range(200)]
    assert pauses == [0.5] + [0] * 199
    assert reactions.to(heard(429), "k", S, None).seconds == 1


def test_a_success_that_was_asked_for_before_the_refusal_does_not_end_the_row():
    backoff = Backoff(longest=60 * S)
    assert backoff.refused(0, 0.5) == FIRST // 2
    backoff.answered(1000)
    assert backoff.refused(10 * S, 0.5) == FIRST


@given(
    st.lists(
        st.tuples(st.integers(0, 100 * S), st.floats(0, 1, exclude_max=True), st.booleans()), max_size=60
    )
)
def test_a_pause_is_never_longer_than_the_longest_and_never_begins_within_another(steps):
    backoff, now, until = Backoff(longest=LONGEST_BACKOFF), 0, 0
    for later, draw, refused in steps:
        now += later
        if not refused:
            backoff.answered(now)
            continue
        pause = backoff.refused(now, draw)
        assert pause <= LONGEST_BACKOFF
        assert (pause == 0) == (now < until)
        until = max(until, now + pause)


def test_the_keys_that_are_remembered_are_bounded():
    reactions = Reactions(draw=lambda: 0.5)
    for number in range(MAX_KEYS + 100):
        reactions.to(heard(429), f"k{number}", 0, None)
    assert len(reactions._backoffs) == MAX_KEYS


# -- following ------------------------------------------------------------------------------------------------


def test_a_lower_limit_is_followed_told_and_left_when_the_remote_allows_more(clock, caplog):
    seen = []
    limiter = Limiter("100/minute", name="api", clock=clock, on_event=lambda event: seen.append(event.kind))
    with caplog.at_level(logging.WARNING, "headway"):
        limiter.feedback((200, {"RateLimit-Policy": '"p";q=50;w=60'}))
    assert limiter.limit == Window(50, per=60)
    assert seen == ["followed"]
    assert caplog.messages == ["headway: api keeps 50/minute from now on, as the remote states it"]
    limiter.feedback((200, {"RateLimit-Policy": '"p";q=50;w=60'}))
    assert seen == ["followed"]
    limiter.feedback((200, {"RateLimit-Policy": '"p";q=70;w=60'}))
    assert limiter.limit == Window(70, per=60)
    limiter.feedback((200, {"RateLimit-Policy": '"p";q=1000;w=60'}))
    assert limiter.limit == Window(100, per=60)


def test_what_the_user_sets_is_the_most_from_then_on(clock):
    limiter = Limiter("100/minute", clock=clock)
    limiter.feedback((200, {"X-RateLimit-Limit": "50"}))
    assert limiter.limit == Window(50, per=60)
    limiter.set_limit("80/minute")
    limiter.feedback((200, {"X-RateLimit-Limit": "1000"}))
    assert limiter.limit == Window(80, per=60)


def test_a_limit_that_the_user_sets_is_the_users_though_it_was_followed_before(clock):
    limiter = Limiter("100/minute", clock=clock)
    for stated in ("50", "1000"):
        limiter.feedback((200, {"X-RateLimit-Limit": stated}))
    limiter.set_limit("50/minute")
    limiter.feedback((200, {"X-RateLimit-Limit": "1000"}))
    assert limiter.limit == Window(50, per=60)
    asyncio.run(limiter.set_limit_async("100/minute"))
    limiter.feedback((200, {"X-RateLimit-Limit": "70"}))
    asyncio.run(limiter.set_limit_async("50/minute"))
    limiter.feedback((200, {"X-RateLimit-Limit": "1000"}))
    assert limiter.limit == Window(50, per=60)


def test_limits_that_take_turns_are_logged_once_each(clock, caplog):
    limiter = Limiter("100/minute", clock=clock)
    with caplog.at_level(logging.WARNING, "headway"):
        for _ in range(20):
            limiter.feedback((200, {"X-RateLimit-Limit": "50"}))
            limiter.feedback((200, {"X-RateLimit-Limit": "70"}))
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    ("profile", "headers"),
    [
        ("github", {"x-ratelimit-limit": "30", "x-ratelimit-resource": "search"}),
        ("discord", {"x-ratelimit-limit": "5", "x-ratelimit-bucket": "abcd"}),
        ("shopify", {"x-shopify-shop-api-call-limit": "1/40"}),
    ],
)
def test_the_limit_of_a_part_of_the_remote_is_not_that_of_all_requests(clock, profile, headers):
    limiter = Limiter("100/hour", clock=clock)
    assert limiter.feedback((200, headers), profile=profile).limits
    assert limiter.limit == Window(100, per=3600)


def test_keys_that_are_different_remotes_have_nothing_to_do_with_each_other(clock):
    limiter = Limiter("100/minute", clock=clock)
    said = {"Retry-After": "30", "X-RateLimit-Global": "true", "X-RateLimit-Limit": "1"}
    assert limiter.feedback((429, said), "a.test", one_remote=False).wait == 30
    asyncio.run(limiter.feedback_async((429, said), "b.test", one_remote=False))
    assert paused_for(limiter, "a.test") >= 30
    assert paused_for(limiter, "b.test") >= 30
    assert paused_for(limiter, "c.test") == 0
    assert limiter.limit == Window(100, per=60)


def test_nothing_is_followed_where_that_is_not_wanted(clock):
    limiter = Limiter("100/minute", clock=clock)
    limiter.feedback((200, {"X-RateLimit-Limit": "50"}), follow=False)
    assert limiter.limit == Window(100, per=60)


def use(limiter, count):
    for _ in range(count):
        with limiter:
            pass


def test_a_limit_that_is_not_stated_is_learned_from_refusals(clock, caplog):
    seen = []
    limiter = Limiter("20/s", clock=clock, on_event=lambda event: seen.append(event.kind))
    use(limiter, 20)
    with caplog.at_level(logging.WARNING, "headway"):
        for _ in range(7):
            limiter.feedback((429, {"Retry-After": "0.5"}))
    assert limiter.limit == Window(12, per=1)  # 13 were served, and one in 32 of them is a margin
    assert seen.count("followed") == 7
    assert "keeps 12/s from now on, as its refusals show" in caplog.text
    # What was learned is doubted after a minute, and never raised above what was configured.
    clock.advance(59)
    limiter.feedback((200, {}))
    assert limiter.limit == Window(12, per=1)
    for _ in range(40):
        clock.advance(61)
        limiter.feedback((200, {}))
    assert limiter.limit == Window(20, per=1)


@pytest.mark.parametrize(
    ("answer", "key", "follow"),
    [
        ((429, {"Retry-After": "1"}), "alice", True),
        ((429, {"Retry-After": "1"}), None, False),
        ((429, {"Retry-After": "1", "X-RateLimit-Limit": "20"}), None, True),
        ((503, {"Retry-After": "1"}), None, True),
    ],
    ids=["of a key", "not followed", "stated", "overloaded"],
)
def test_nothing_is_learned_from_other_refusals(clock, answer, key, follow):
    limiter = Limiter("20/s", clock=clock)
    use(limiter, 20)
    for _ in range(5):
        limiter.feedback(answer, key, follow=follow)
    assert limiter.limit == Window(20, per=1)


def test_nothing_is_learned_where_little_is_used(clock):
    limiter = Limiter("20/s", clock=clock)
    use(limiter, 9)
    limiter.feedback((429, {"Retry-After": "1"}))
    assert limiter.limit == Window(20, per=1)


def test_a_limit_that_the_user_sets_is_the_configured_one_from_then_on(clock):
    limiter = Limiter("20/s", clock=clock)
    use(limiter, 20)
    limiter.feedback((429, {"Retry-After": "0.5"}))
    assert limiter.limit == Window(18, per=1)
    limiter.set_limit("10/s")
    clock.advance(100)
    for _ in range(9):
        limiter.feedback((200, {}))
        clock.advance(100)
    assert limiter.limit == Window(10, per=1)


def test_limits_that_are_set_in_another_order_than_decided_are_not_taken_for_the_users():
    reactions = Reactions(draw=lambda: 0.5)
    first = reactions.to(heard(429), None, 0, Window(20, per=1), 20).limit
    assert first == Window(18, per=1)
    second = reactions.to(heard(429), None, 1, first, 0).limit
    assert second == Window(17, per=1)
    # The second was set before the first: so the first is kept for now, and is mended with the next answer.
    assert reactions.to(heard(200), None, 2, first).limit == second
    # And the configured limit is still known.
    raised: Kept = second
    now = 0
    for _ in range(40):
        now += 61 * S
        raised = reactions.to(heard(200), None, now, raised).limit or raised
    assert raised == Window(20, per=1)


def test_a_metric_follows_the_limit_of_its_name(clock):
    limiter = Limiter({"requests": "100/minute", "input_tokens": "9000/minute"}, clock=clock)
    headers = {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-input-tokens-limit": "4000",
        "anthropic-ratelimit-output-tokens-limit": "10",
    }
    limiter.feedback((200, headers), profile="anthropic")
    assert limiter.limit == {"requests": Window(50, per=60), "input_tokens": Window(4000, per=60)}


def test_a_limit_of_tokens_is_not_that_of_requests(clock):
    limiter = Limiter("100/minute", clock=clock)
    limiter.feedback(
        (200, {"x-ratelimit-limit-tokens": "5", "x-ratelimit-limit-requests": "90"}), profile="openai"
    )
    assert limiter.limit == Window(90, per=60)


@pytest.mark.parametrize(
    ("configured", "stated", "kept"),
    [
        (Window(100, per=60), Stated(0, 60 * S), Window(1, per=60)),
        (Window(100, per=60), Stated(50, 3600 * S), Window(100, per=60)),
        (FixedWindow(100, per="day"), Stated(50, 86400 * S), FixedWindow(50, per="day")),
        (FixedWindow(100, per="month"), Stated(50), FixedWindow(50, per="month")),
        (Bucket("10/s", burst=20), Stated(300, 60 * S), Bucket((280, 60), burst=20)),
        (Bucket("10/s", burst=20), Stated(5), Bucket((4, 1), burst=1)),
        (Bucket("10/s", burst=20), Stated(600, 60 * S), Bucket("10/s", burst=20)),
        (Spacing(1), Stated(30, 60 * S), Spacing(2)),
        (Spacing(1), Stated(90, 60 * S), Spacing(1)),
        (Spacing(1), Stated(1), Spacing(1)),
        (Concurrency(5), Stated(2, at_once=True), Concurrency(2)),
        (Concurrency(5), Stated(2), Concurrency(5)),
        (AllOf("10/s", "500/minute"), Stated(5), AllOf("10/s", "500/minute")),
        (AllOf("10/s", "500/minute"), Stated(50, 60 * S), AllOf("10/s", "50/minute")),
        (AllOf("10/s", "5 concurrent"), Stated(3), AllOf("3/s", "5 concurrent")),
    ],
)
def test_each_kind_is_lowered_by_its_own_measure(configured, stated, kept):
    assert followed(configured, [stated]) == kept


RATES = st.one_of(
    st.builds(lambda n, per: Window(n, per=per), st.integers(1, 1000), st.integers(1, 600)),
    st.builds(
        lambda n, per, b: Bucket((n, per), burst=b),
        st.integers(1, 1000),
        st.integers(1, 600),
        st.integers(1, 99),
    ),
    st.builds(lambda ms: Spacing(f"{ms}ms"), st.integers(1, 10_000)),
)


def most_in(limit, ns):
    """How many a limit admits in a time, at most."""
    if isinstance(limit, Window):
        return limit.count * -(-ns // limit.per_ns)
    if isinstance(limit, Bucket):
        return limit.burst + limit.count * ns // limit.per_ns
    return -(-ns // limit.interval_ns)


@given(RATES, st.integers(1, 2000), st.integers(1, 600))
def test_a_limit_that_was_lowered_keeps_the_stated_one_in_every_window(configured, quota, seconds):
    kept = followed(configured, [Stated(quota, seconds * S)])
    assert most_in(kept, 7200 * S) <= most_in(configured, 7200 * S)
    if kept != configured:
        assert most_in(kept, seconds * S) <= max(quota, 2)


# -- what is not a response -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", [None, 429, "429", {}, (429,), ("429", {}), (429, None), (429, "x"), object()]
)
def test_what_is_no_response_is_refused_and_changes_nothing(bad, clock):
    limiter = Limiter("100/minute", clock=clock)
    with pytest.raises(InvalidArgument, match="give a response of httpx, requests, aiohttp or botocore, or"):
        limiter.feedback(bad)
    assert paused_for(limiter) == 0


def test_a_key_that_is_none_is_refused(clock):
    with pytest.raises(InvalidKey):
        Limiter("1/s", clock=clock).feedback((429, {}), 5)  # type: ignore[arg-type]


def test_an_unknown_profile_is_refused(clock):
    with pytest.raises(InvalidArgument, match="profile='nope' is not accepted"):
        Limiter("1/s", clock=clock).feedback((429, {}), profile="nope")


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_response_that_was_made_without_a_request_is_an_answer(clock, library):
    said = Limiter("1/s", clock=clock).feedback(library.Response(429, headers={"Retry-After": "2"}))
    assert said.wait == 2


class Throttled(Exception):
    """As botocore raises it."""

    def __init__(self):
        self.response = {
            "Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"},
            "ResponseMetadata": {"HTTPStatusCode": 400, "HTTPHeaders": {"x-amz-retry-after": "1500"}},
        }


def test_an_error_of_botocore_is_an_answer(clock):
    limiter = Limiter("100/minute", clock=clock)
    said = limiter.feedback(Throttled())
    assert said.refused
    assert said.wait == 1.5
