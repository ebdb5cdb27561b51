"""`AdaptiveConcurrency`: the bracket, for threads and tasks."""

import asyncio
import threading

import pytest

from headway import AcquireTimeout, AdaptiveConcurrency, InvalidArgument, InvalidUse, LimiterClosed
from headway.testing import ManualClock
from waiting import NEVER


def test_the_number_rises_while_latency_stays_and_falls_when_it_grows():
    clock = ManualClock()
    backend = AdaptiveConcurrency(8, 1, 100, clock=clock)

    def round_of(number, seconds):
        holds = [backend.hold() for _ in range(number)]
        for hold in holds:
            hold.__enter__()
        clock.advance(seconds)
        for hold in holds:
            hold.__exit__(None, None, None)

    for _ in range(6):
        round_of(backend.allowed, 0.05)
        clock.advance(0.001)
    assert backend.allowed > 20
    before = backend.allowed
    for _ in range(6):
        round_of(backend.allowed, 0.5)
        clock.advance(0.001)
    assert backend.allowed < before
    assert backend.in_flight == 0


def test_no_more_than_allowed_are_let_in():
    backend = AdaptiveConcurrency(2, 1, 10)
    with backend, backend:
        assert backend.in_flight == 2
        with pytest.raises(AcquireTimeout), backend.hold(timeout=0.01):
            raise AssertionError("three were let in")
    assert backend.in_flight == 0
    with backend:
        pass


def test_threads_share_the_number():
    backend = AdaptiveConcurrency(4, 1, 8)
    most, lock, inside = [], threading.Lock(), [0]

    def work():
        for _ in range(30):
            with backend:
                with lock:
                    inside[0] += 1
                    most.append(inside[0])
                with lock:
                    inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(NEVER)
    assert max(most) <= 8
    assert backend.in_flight == 0


def test_tasks_wait_their_turn_and_a_cancelled_one_leaves_nothing_behind():
    async def main():
        backend = AdaptiveConcurrency(1, 1, 4)
        order = []

        async def call(number):
            async with backend:
                order.append(number)
                await asyncio.sleep(0)

        async with backend:
            waiting = asyncio.create_task(call(99))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await asyncio.gather(*map(call, range(5)))
        assert order == list(range(5))
        assert backend.in_flight == 0

    asyncio.run(main())


def test_time_outs_lower_the_number_and_other_errors_do_not():
    for error in (
        TimeoutError(),
        BrokenPipeError(),
        ValueError(),
        ConnectionRefusedError(),
        KeyboardInterrupt(),
    ):
        backend = AdaptiveConcurrency(20, 1, 100)
        for _ in range(20):
            with pytest.raises(type(error)), backend:
                raise error
        assert (backend.allowed < 20) == isinstance(error, TimeoutError | BrokenPipeError)


def test_bad_numbers_are_refused():
    for numbers in ((0, 1, 2), (5, 6, 7), (8, 1, 7), (1.5, 1, 2), (True, 1, 2), (1, 1, 1 << 30)):
        with pytest.raises(InvalidArgument):
            AdaptiveConcurrency(*numbers)


def test_a_block_is_left_where_it_was_entered():
    backend = AdaptiveConcurrency()
    with pytest.raises(InvalidUse):
        backend.__exit__(None, None, None)


def test_closed_it_lets_no_call_begin():
    backend = AdaptiveConcurrency()
    backend.close()
    with pytest.raises(LimiterClosed), backend:
        pass
    assert "AdaptiveConcurrency(10, least=1, most=200)" in repr(backend)
