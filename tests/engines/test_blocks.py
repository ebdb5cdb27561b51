"""with, async with, hold and the decorator: how a block ends its permit, and whose permit it is."""

import asyncio
import socket
import threading
from contextlib import contextmanager, nullcontext

import pytest

from engines.limits import HOUR, REMOTE
from engines.waiting import NEVER, Callers, counts, eventually
from headway import RateLimited, Window

ENDS = ("complete", "cancel", "abandon", "settle")


@pytest.fixture
def remote(make):
    """A limiter on which the three ends look different: see `ended_as`."""
    return make(Window(3, per=HOUR, remote=REMOTE))


def ended_as(limiter, how):
    """Wait until the ledger knows that the only permit of `remote` has ended so."""
    facts = {"cancel": (3, 0), "complete": (2, 0), "abandon": (2, 1)}[how]
    eventually(lambda: counts(limiter) == facts, how)


class Answered(Exception):
    response = "404"


class Wrapped(Exception):
    pass


def refused():
    try:
        raise ConnectionRefusedError
    except OSError as error:
        wrapped = Wrapped()
        wrapped.__cause__ = error
        return wrapped


HOW = [
    (None, "complete"),
    (ValueError(), "complete"),
    (KeyError("x"), "complete"),
    (Answered(), "complete"),
    (ConnectionRefusedError(), "cancel"),
    (socket.gaierror(), "cancel"),
    (refused(), "cancel"),
    (TimeoutError(), "abandon"),
    (ConnectionResetError(), "abandon"),
    (RuntimeError(), "abandon"),
    (KeyboardInterrupt(), "abandon"),
]


@pytest.mark.parametrize(
    ("error", "how"), HOW, ids=lambda value: value if isinstance(value, str) else repr(value)
)
@pytest.mark.parametrize("form", ["limiter", "hold", "permit"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["with", "async with"])
def test_how_a_block_ends_its_permit(remote, error, how, form, asynchronous):
    manager = {"limiter": lambda: remote, "hold": remote.hold, "permit": remote.acquire}[form]()
    seen = []

    def body(permit):
        seen.append(permit)
        if error is not None:
            raise error

    async def asynchronously():
        async with manager as permit:
            body(permit)

    def synchronously():
        with manager as permit:
            body(permit)

    with nullcontext() if error is None else pytest.raises(type(error)):
        asyncio.run(asynchronously()) if asynchronous else synchronously()
    assert seen[0].ended == how
    ended_as(remote, how)


def test_a_hold_takes_what_it_is_told_to(make):
    limiter = make("5 concurrent", timeout=0)
    with limiter.hold("a", cost=3, timeout=1) as permit:
        assert (permit.key, permit.cost, limiter.peek("a").in_flight) == ("a", 3, 3)
        with pytest.raises(RateLimited), limiter.hold("a", cost=3):
            raise AssertionError
    eventually(lambda: limiter.peek("a").in_flight == 0, "its end")


def test_the_caller_knows_better(remote):
    with pytest.raises(RuntimeError), remote.hold(answered=RuntimeError):
        raise RuntimeError
    ended_as(remote, "complete")
    remote.reset()
    with pytest.raises(RuntimeError), remote.hold(not_sent=lambda error: "dns" in str(error)):
        raise RuntimeError("dns failed")
    ended_as(remote, "cancel")
    with pytest.raises(ValueError, match="x"), remote.hold(answered=(KeyError,)):
        raise ValueError("x")
    ended_as(remote, "abandon")


@pytest.mark.parametrize("wrong", ["ValueError", 5, (ValueError, 3), int])
def test_a_proof_that_proves_nothing(remote, wrong):
    with pytest.raises(ValueError, match="answered"):
        remote.hold(answered=wrong)


@pytest.mark.parametrize("how", ENDS)
def test_an_explicit_end_makes_leaving_a_no_op(make, how):
    limiter = make(Window(3, per=HOUR, remote=REMOTE))

    def end(permit):
        permit.settle(1) if how == "settle" else getattr(permit, how)()

    with limiter.hold() as permit:
        end(permit)
    assert permit.ended == how
    with pytest.raises(TimeoutError), limiter as permit:  # noqa: PT012 - that both happen is the point
        end(permit)
        raise TimeoutError
    assert permit.ended == how


def test_with_is_re_entrant(make):
    limiter = make("3 concurrent")
    with limiter as outer:
        with limiter as middle, limiter as inner:
            assert len({id(outer), id(middle), id(inner)}) == 3
            assert limiter.peek().in_flight == 3
        assert (inner.ended, middle.ended, outer.ended) == ("complete", "complete", None)
    eventually(lambda: limiter.peek().in_flight == 0, "nothing that is out")


def test_with_belongs_to_its_task(make):
    limiter = make("9 concurrent")
    own = []

    async def task(number):
        async with limiter as outer:
            await asyncio.sleep((7 * number % 5) / 100)
            async with limiter as inner:
                await asyncio.sleep((3 * number % 4) / 100)
                assert (outer.ended, inner.ended) == (None, None)
            assert (outer.ended, inner.ended) == (None, "complete")
            await asyncio.sleep(0.005)
        own.append(outer.ended)

    async def main():
        await asyncio.gather(*(task(number) for number in range(4)))

    asyncio.run(main())
    assert own == ["complete"] * 4
    eventually(lambda: limiter.peek().in_flight == 0, "nothing that is out")


def test_with_belongs_to_its_thread(make):
    limiter = make("20 concurrent")
    barrier = threading.Barrier(4)
    wrong: list[object] = []

    def work():
        for _ in range(10):
            with limiter as outer:
                barrier.wait(NEVER)
                with limiter as inner:
                    barrier.wait(NEVER)
                if (outer.ended, inner.ended) != (None, "complete"):
                    wrong.append((outer, inner))
            if outer.ended != "complete":
                wrong.append(outer)

    callers = Callers()
    for _ in range(4):
        callers.start(work)
    assert callers.join() == [None] * 4
    assert wrong == []
    eventually(lambda: limiter.peek().in_flight == 0, "nothing that is out")
    assert limiter.stats().granted == 80


def test_a_block_left_by_another_thread(make):
    """A generator with `with limiter: yield` may be resumed elsewhere: FastAPI's dependencies, for instance."""
    limiter = make("2 concurrent")

    @contextmanager
    def dependency():
        with limiter:
            yield

    block = dependency()
    block.__enter__()
    callers = Callers()
    callers.start(block.__exit__, None, None, None)
    callers.join()
    eventually(lambda: limiter.peek().in_flight == 0, "its end")


def test_a_failed_entry_leaves_nothing_behind(make):
    limiter = make("1 concurrent", timeout=0)
    with limiter:
        with pytest.raises(RateLimited), limiter:
            raise AssertionError
        with pytest.raises(RateLimited), limiter.hold():
            raise AssertionError
    eventually(lambda: limiter.peek().in_flight == 0, "nothing that is out")
    assert limiter.stats().waiting == 0


def test_a_limiter_is_a_decorator(make):
    limiter = make("2 concurrent")

    @limiter
    def call():
        return limiter.peek().in_flight

    @limiter
    async def call_async():
        return (await limiter.peek_async()).in_flight

    assert (call(), asyncio.run(call_async())) == (1, 1)
    eventually(lambda: limiter.peek().in_flight == 0, "nothing that is out")
    assert limiter.stats().completed == 2
