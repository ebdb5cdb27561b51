"""What a throttled call asks for and how its permit ends: key, cost, settle, timeout, skip, answered, not_sent."""

import asyncio
import functools
import gc
import inspect
import socket
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import pytest

import headway
from headway import Limiter, RateLimited, Remote, Window
from headway.errors import InvalidArgument, InvalidKey
from headway.testing import ManualClock

pytestmark = pytest.mark.both_forms

# The attributes that a throttled function has beyond its type are looked at here, and wrong calls are made.
throttle: Callable[..., Callable[[Any], Any]] = headway.throttle


def as_called(kind, function):
    """The function as a plain one, a coroutine function, a generator or an async one, and how to call it."""

    @functools.wraps(function)
    async def coroutine(*args, **kwargs):
        return function(*args, **kwargs)

    @functools.wraps(function)
    def generator(*args, **kwargs):
        value = function(*args, **kwargs)
        yield value
        return value

    @functools.wraps(function)
    async def async_generator(*args, **kwargs):
        yield function(*args, **kwargs)

    async def first(stream):
        (value,) = [value async for value in stream]
        return value

    return {
        "def": (function, lambda call: call),
        "async def": (coroutine, asyncio.run),
        "generator": (generator, lambda call: list(call).pop()),
        "async generator": (async_generator, lambda call: asyncio.run(first(call))),
    }[kind]


KINDS = ["def", "async def", "generator", "async generator"]
# An async generator has no result that could be settled by.
with_result = pytest.mark.parametrize("decorated", KINDS[:3], indirect=True)


@pytest.fixture(params=KINDS)
def decorated(request):
    """`decorated(limit, **options)(function)`: throttled in one of the four kinds, and called in its way."""

    def decorate(limit, **options):
        def wrap(function):
            plain, run = as_called(request.param, function)
            throttled = throttle(limit, **options)(plain)

            def call(*args, **kwargs):
                return run(throttled(*args, **kwargs))

            return functools.update_wrapper(call, throttled)

        return wrap

    return decorate


def test_key_of_the_arguments(decorated):
    call = decorated("5/hour", key=lambda user, *, region="eu": f"{user}@{region}")(
        lambda user, *, region="eu": user
    )
    call("ann")
    call("ann", region="us")
    call(user="ann")
    assert call.limiter.peek("ann@eu").remaining == 3
    assert call.limiter.peek("ann@us").remaining == 4
    assert call.limiter.peek().remaining == 5


def test_key_may_be_an_int_or_a_fixed_string(decorated):
    call = decorated("5/hour", key=lambda number: number)(lambda number: number)
    call(7)
    assert call.limiter.peek("7").remaining == 4
    call = decorated("5/hour", key="always")(lambda: None)
    call()
    assert call.limiter.peek("always").remaining == 4


@pytest.mark.parametrize(
    ("key", "error"), [(None, InvalidArgument), (1.5, InvalidKey), (b"k", InvalidKey), (True, InvalidKey)]
)
def test_key_of_another_kind_is_an_error(decorated, key, error):
    called: list[int] = []
    call = decorated("5/hour", key=lambda value: key)(called.append)
    with pytest.raises(error, match="key") as caught:
        call(1)
    assert "did you mean" not in str(caught.value)  # it is the function's answer, and not an argument too few
    assert called == []
    assert call.limiter.stats().granted == 0


def test_key_function_that_fails(decorated):
    call = decorated("5/hour", key=lambda user: user.id)(lambda user: user)
    with pytest.raises(AttributeError, match="id"):
        call("ann")
    assert call.limiter.stats().granted == 0


def test_cost_of_the_arguments(decorated):
    call = decorated("100/hour", cost=lambda items: sum(1 for _ in items))(lambda items: items)
    call([1, 2, 3])
    call(items=[1])
    assert call.limiter.peek().remaining == 96
    with pytest.raises(InvalidArgument, match="cost"):
        call([])
    with pytest.raises(InvalidArgument, match="cost"):
        call(range(101))
    assert call.limiter.stats().granted == 2
    call = decorated("100/hour", cost=10)(lambda: None)
    call()
    assert call.limiter.peek().remaining == 90


@with_result
def test_settle_less_and_more(decorated):
    call = decorated("100/hour burst 100", cost=10, settle=lambda result: result)(lambda used: used)
    call(4)
    assert call.limiter.peek().remaining == 96
    call(50)
    assert call.limiter.peek().remaining == 46
    call(0)
    assert call.limiter.peek().remaining == 46


@with_result
def test_requests_and_tokens(decorated):
    call = decorated(
        {"requests": "500/minute", "tokens": "30000/minute"},
        key=lambda model, prompt: model,
        cost=lambda model, prompt: {"tokens": 1000},
        settle=lambda answer: {"tokens": len(answer)},
    )(lambda model, prompt: prompt)
    call("large", "x" * 300)
    call("large", "y" * 200)
    requests, tokens = call.limiter.peek("large").parts
    assert (requests.remaining, tokens.remaining) == (498, 29500)
    assert call.limiter.peek("small").parts[0].remaining == 500


@pytest.mark.parametrize("settled", [None, -1, "5", 1.5, {"tokens": 1}])
def test_settle_that_says_nonsense_ends_the_permit(decorated, settled):
    call = decorated("5 concurrent", settle=lambda result: settled)(lambda: "result")
    with pytest.raises(InvalidArgument):
        call()
    gc.collect()
    assert call.limiter.stats().completed == 1
    assert call.limiter.peek().in_flight == 0


@with_result
def test_settle_that_fails_ends_the_permit(decorated):
    call = decorated("5 concurrent", settle=lambda result: result["usage"])(lambda: {"cost": 1})
    with pytest.raises(KeyError):
        call()
    assert call.limiter.stats().completed == 1
    assert call.limiter.peek().in_flight == 0


def test_timeout_zero_never_waits(decorated):
    for timeout in (0, 0.0, timedelta(0)):
        call = decorated("1/hour", timeout=timeout)(lambda: "result")
        assert call() == "result"
        with pytest.raises(RateLimited, match="timeout=0 s"):
            call()


def test_timeout_none_waits_and_the_limiter_has_a_default(decorated):
    clock = ManualClock(autojump=True)
    call = decorated("1/minute", timeout=None, remote=False, clock=clock)(clock.now)
    assert [call() // 10**9 for _ in range(3)] == [0, 60, 120]
    with pytest.raises(RateLimited, match="timeout=5 s"):
        [decorated(limiter)(lambda: 0)() for limiter in [Limiter("1/hour", timeout=5)] for _ in range(2)]
    limiter = Limiter("1/minute", timeout=5, remote=False, clock=clock)
    waits = decorated(limiter, timeout=None)(clock.now)
    assert waits() + 60 * 10**9 == waits()


def test_skip(decorated):
    called: list[int] = []
    limiter = Limiter("1/hour")
    call = throttle(limiter, on_limit="skip", timeout=0)(called.append)
    assert [call(1), call(2)] == [None, None]
    assert called == [1]
    later = throttle(Limiter("1/hour"), on_limit="skip", timeout=0)(lambda_async("result"))
    assert [asyncio.run(later()), asyncio.run(later())] == ["result", None]


def test_skip_hides_no_other_limit(decorated):
    """What the function itself raises is not for us to skip."""
    inner = Limiter("1/hour")

    def function():
        inner.acquire(timeout=0)
        return "result"

    call = decorated("100/hour", on_limit="skip")(function)
    assert call() == "result"
    with pytest.raises(RateLimited, match="1/hour"):
        call()


def lambda_async(result):
    async def function():
        return result

    return function


class Refused(Exception):
    pass


class HasResponse(Exception):
    response = "429"


ENDS = [
    # what is raised, answered=, not_sent=, and how the permit ends
    (ValueError, None, None, "completed"),
    (KeyError, None, None, "completed"),
    (HasResponse, None, None, "completed"),
    (OSError, None, None, "abandoned"),
    (TimeoutError, None, None, "abandoned"),
    (asyncio.CancelledError, None, None, "abandoned"),
    (KeyboardInterrupt, None, None, "abandoned"),
    (ConnectionRefusedError, None, None, "cancelled"),
    (socket.gaierror, None, None, "cancelled"),
    (UnicodeError, None, None, "completed"),
    (Refused, Refused, None, "completed"),
    (Refused, (KeyError, Refused), None, "completed"),
    (ValueError, Refused, None, "abandoned"),
    (Refused, None, Refused, "cancelled"),
    (Refused, None, (KeyError, Refused), "cancelled"),
    (ConnectionRefusedError, None, Refused, "abandoned"),
    (Refused, lambda error: isinstance(error, Refused), None, "completed"),
    (Refused, None, lambda error: "Refused" in type(error).__name__, "cancelled"),
    (Refused, lambda error: 0, lambda error: "", "abandoned"),
    (Refused, Refused, Refused, "completed"),
]


@pytest.mark.parametrize(("raised", "answered", "not_sent", "end"), ENDS)
def test_the_end_of_a_call_that_raised(decorated, raised, answered, not_sent, end):
    def function():
        raise raised

    call = decorated("3/hour", answered=answered, not_sent=not_sent)(function)
    with pytest.raises(raised):
        call()
    stats = call.limiter.stats()
    assert {name for name in ("completed", "cancelled", "abandoned") if getattr(stats, name)} == {end}
    assert call.limiter.peek().remaining == (3 if end == "cancelled" else 2)


def test_a_proof_that_fails_leaves_no_permit_out(decorated):
    def function():
        raise Refused

    cases: list[dict[str, Any]] = [
        {"answered": lambda error: error.code},
        {"not_sent": lambda error: error.code},
    ]
    for options in cases:
        call = decorated("3 concurrent", **options)(function)
        with pytest.raises(AttributeError, match="code") as caught:
            call()
        assert isinstance(caught.value.__context__, Refused)
        del caught
        gc.collect()
        assert call.limiter.stats().abandoned == 1
        assert call.limiter.peek().in_flight == 0
        limiter = Limiter("3 concurrent")
        with pytest.raises(AttributeError), limiter.hold(**options):
            raise Refused
        gc.collect()
        assert (limiter.stats().abandoned, limiter.peek().in_flight) == (1, 0)


def test_an_abandoned_permit_counts_until_the_transit_is_over(decorated):
    clock = ManualClock()
    remote = Remote(resolution=0, drift_ppm=0, max_transit=5)

    def function(error):
        if error is not None:
            raise error

    limit = Window(1, per=10, remote=remote)
    call = decorated(limit, timeout=0, clock=clock)(function)
    with pytest.raises(TimeoutError):
        call(TimeoutError())
    assert (call.limiter.peek().in_flight, call.limiter.peek().exact) == (1, True)
    clock.advance(14.9)
    with pytest.raises(RateLimited):
        call(None)
    clock.advance(0.2)
    call(None)
    clock.advance(9.9)
    with pytest.raises(RateLimited):
        call(None)
    clock.advance(0.2)
    call(None)


def test_ended_by_hand_inside(decorated):
    limiter = Limiter("3 concurrent")
    with limiter.hold() as permit:
        permit.complete()
        assert limiter.peek().in_flight == 0
    assert limiter.stats().completed == 1


def test_one_limiter_for_two_functions():
    limiter = Limiter("3/hour")
    first = throttle(limiter, timeout=0)(lambda: 1)
    second = throttle(limiter, timeout=0)(lambda: 2)
    assert [first(), second(), first()] == [1, 2, 1]
    with pytest.raises(RateLimited):
        second()
    assert first.limiter is second.limiter is limiter


def test_a_limiter_is_a_decorator():
    limiter = Limiter("6 concurrent")

    @limiter
    def plain(a, *, b=2):
        """Doc."""
        assert limiter.peek().in_flight == 1
        return a, b

    @limiter
    async def coroutine(a):
        assert limiter.peek().in_flight == 1
        return a

    @limiter
    def generator(count):
        yield from range(count)

    class Owner:
        @limiter
        def method(self, a):
            return a

    assert plain(1, b=3) == (1, 3)
    assert (plain.__doc__, plain.__name__, str(inspect.signature(plain))) == ("Doc.", "plain", "(a, *, b=2)")
    assert inspect.iscoroutinefunction(coroutine)
    assert asyncio.run(coroutine(1)) == 1
    assert list(generator(3)) == [0, 1, 2]
    assert Owner().method(4) == 4
    assert limiter.stats().completed == 4


@pytest.mark.parametrize(
    "options",
    [
        {"on_limit": "drop"},
        {"key": 5.5},
        {"key": True},
        {"settle": 5},
        {"answered": 5},
        {"answered": int},
        {"not_sent": (ValueError, 5)},
        {"max_waiting": -1},
        {"remote": "yes"},
        {"timeout": -1},
        {"timeout": "5"},
        {"cost": 0},
        {"cost": -1},
        {"cost": 1.5},
        {"cost": {"tokens": 1}},
    ],
)
def test_wrong_options_are_refused_at_once(options):
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        throttle("5/s", **options)


def test_a_limiter_has_its_own_options():
    with pytest.raises(InvalidArgument, match="max_waiting"):
        throttle(Limiter("5/s"), max_waiting=5)
    with pytest.raises(TypeError):
        throttle("5/s", no_such_option=1)


def test_a_window_of_its_own_wins():
    for remote, found in ((None, None), (False, False), (True, Remote()), (Remote(max_transit=3),) * 2):
        assert throttle("5/s", remote=remote)(len).limiter.limit.remote == found
    own = Window(5, per=1, remote=Remote(max_transit=3))
    assert throttle(own, remote=False)(len).limiter.limit == own
    local = Window(5, per=1, remote=False)
    assert throttle(local, remote=True)(len).limiter.limit == local


def test_keys_may_be_numbers():
    """A user's id is often one; it is the same key as its digits."""
    call = throttle("1/hour", key=lambda user: user, timeout=0, on_limit="skip")(lambda user: user)
    assert [call(5), call(5), call("5"), call(HTTPStatus.OK), call(200)] == [
        5,
        None,
        None,
        HTTPStatus.OK,
        None,
    ]
    assert throttle("5/hour", key=7)(len).limiter.peek("7").remaining == 5
    fixed = throttle("5/hour", key=7)(len)
    fixed("ab")
    assert fixed.limiter.peek("7").remaining == 4
    each = throttle({"host": "1/hour", "all": "9/hour"}, key=lambda host: {"host": host})(lambda host: host)
    assert each(5) == 5
    assert each.limiter.peek({"host": "5"})["host"].remaining == 0
    for wrong in (True, 5.5, b"5"):
        with pytest.raises(TypeError):
            call(wrong)


@pytest.mark.parametrize("kind", ["def", "async def", "generator", "async generator"])
def test_skip_leaves_what_the_key_function_raises(kind):
    """Only a refusal of this limiter is skipped."""

    def key(*args):
        raise RateLimited(5, reason="from elsewhere")

    async def later():
        return 1

    async def stream():
        yield 1

    functions = {"def": len, "async def": later, "generator": lambda: (yield 1), "async generator": stream}
    call = throttle("5/s", key=key, on_limit="skip")(functions[kind])
    calls = {
        "def": lambda: call("ab"),
        "async def": lambda: asyncio.run(call()),
        "generator": lambda: list(call()),
        "async generator": lambda: asyncio.run(anext(call())),
    }
    with pytest.raises(RateLimited) as caught:
        calls[kind]()
    assert caught.value.reason == "from elsewhere"
