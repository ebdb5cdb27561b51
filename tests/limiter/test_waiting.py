"""A thousand tasks on one limiter: when each is served, against a simpler program that works it out by itself."""

# Whether a permit or a denial comes is what is tested.
# mypy: disable-error-code="union-attr"

import asyncio
import random

import pytest

from headway import Limiter, RateLimited, Remote, Window
from headway.testing import ManualClock, run
from limiter import oracle
from limiter.oracle import SECOND, Waiter, serve

pytestmark = [
    pytest.mark.both_forms,
    # Permits stay out on purpose, and long.
    pytest.mark.filterwarnings("ignore:answers take:RuntimeWarning"),
]

CROWD = 1000
EXACT_REMOTE = Remote(resolution=0, drift_ppm=0, max_transit=2)

# What is limited; what the oracle does; the highest cost; how long held permits stay out, at most.
KINDS = {
    "bucket": ("10/s burst 10", lambda: oracle.Bucket(10, 10), 8, 0),
    "bucket in thirds": ("3/s burst 7", lambda: oracle.Bucket(3, 7), 7, 0),
    "bucket of one": ("1000/s burst 1", lambda: oracle.Bucket(1000, 1), 1, 0),
    "window": ("20/s", lambda: oracle.Window(20, SECOND), 8, 0),
    "spacing": ("1 every 7ms", lambda: oracle.Spacing(7_000_000), 1, 0),
    "fixed window": ("25/minute aligned", lambda: oracle.FixedWindow(25, 60 * SECOND), 8, 0),
    "concurrency": ("9 concurrent", lambda: oracle.Concurrency(9), 8, SECOND),
    "several": (
        "20/s burst 8; 30/s; 9 concurrent; 500/minute aligned",
        lambda: oracle.AllOf(
            oracle.Bucket(20, 8),
            oracle.Window(30, SECOND),
            oracle.Concurrency(9),
            oracle.FixedWindow(500, 60 * SECOND),
        ),
        8,
        SECOND // 2,
    ),
    # The clock's own tick of 1 ns is part of both.
    "window, remote": (
        Window(20, per=1, remote=EXACT_REMOTE),
        lambda: oracle.RemoteWindow(20, SECOND + 1, 2 * SECOND + 1),
        8,
        3 * SECOND,
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def crowd(kind, seed, *, at_once):
    """Waiters with different costs; those that come one after another come faster than they can be served."""
    _, _, most, keeps = kind
    dice = random.Random(seed)
    comes = 0
    waiters = []
    for _ in range(CROWD):
        comes += 0 if at_once else dice.randrange(1, 2_000_001)
        waiters.append(Waiter(comes, dice.randint(1, most), keeps=dice.randrange(keeps) if keeps else 0))
    return waiters


def play(limit, waiters, *, timeouts=False, cancels=False):
    """Let tasks do what the waiters do; returns the limiter, when each task was served, and when it was refused."""
    clock = ManualClock()
    limiter = Limiter(limit, clock=clock)
    served, refused = {}, {}

    async def wait(index, waiter):
        await clock.sleep_async(waiter.comes / SECOND)
        patience = None if waiter.gives_up is None else waiter.gives_up - waiter.comes
        try:
            permit = await limiter.acquire_async(
                cost=waiter.cost, timeout=patience / SECOND if timeouts and patience is not None else None
            )
        except RateLimited as error:
            refused[index] = clock.now() if error.reason == "timeout" else -1
            return
        served[index] = clock.now()
        if waiter.keeps:
            await clock.sleep_async(waiter.keeps / SECOND)
        permit.complete()

    async def main():
        tasks = []
        for index, waiter in enumerate(waiters):
            tasks.append(asyncio.ensure_future(wait(index, waiter)))
        if cancels:
            moments = sorted((w.gives_up, i) for i, w in enumerate(waiters) if w.gives_up is not None)
            for moment, index in moments:
                await clock.sleep_async((moment - clock.now()) / SECOND)
                if index not in served:
                    tasks[index].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [task.exception() for task in tasks if not task.cancelled()]

    errors = run(main(), clock=clock)
    assert set(errors) <= {None}
    return limiter, served, refused


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
def test_a_crowd_is_served_in_order_on_the_ideal_schedule(kind, at_once):
    limit, model, _, _ = kind
    waiters = crowd(kind, 1, at_once=at_once)
    limiter, served, refused = play(limit, waiters)
    assert served == serve(model(), waiters)
    assert list(served) == list(range(CROWD))
    assert (refused, limiter.stats().granted, limiter.stats().waiting) == ({}, CROWD, 0)


@pytest.mark.parametrize("seed", range(4))
def test_when_half_of_them_are_cancelled_the_others_move_up(kind, seed):
    limit, model, _, _ = kind
    waiters = crowd(kind, seed, at_once=seed % 2 == 0)
    patient = serve(model(), waiters)
    dice = random.Random(seed)
    for index in dice.sample(range(CROWD), CROWD // 2):
        comes, turn = waiters[index].comes, patient[index]
        # Also after its turn: such a cancellation comes too late and changes nothing.
        waiters[index].gives_up = dice.randint(comes + 1, max(comes + 1, turn + SECOND))
    expected = serve(model(), waiters)
    limiter, served, _ = play(limit, waiters, cancels=True)
    assert served == expected
    assert list(served) == list(expected)
    assert CROWD // 2 <= len(served) < CROWD
    stats = limiter.stats()
    assert (stats.granted, stats.waiting, stats.completed) == (len(served), 0, len(served))
    assert limiter.peek().waiting == 0


@pytest.mark.parametrize("seed", range(3))
def test_time_outs_lose_and_mint_nothing(kind, seed):
    limit, model, _, keeps = kind
    waiters = crowd(kind, seed, at_once=False)
    patient = serve(model(), waiters)
    dice = random.Random(seed)
    for index in dice.sample(range(CROWD), CROWD // 2):
        comes, turn = waiters[index].comes, patient[index]
        waiters[index].gives_up = dice.randint(comes, max(comes, turn + SECOND // 10))
    limiter, served, refused = play(limit, waiters, timeouts=True)
    # A waiter that certainly cannot make it never stands in the queue, and so holds up no other.
    # A known schedule refuses no other.
    at_once = {index for index, at in refused.items() if at == waiters[index].comes}
    assert keeps or len(at_once) == len(refused)
    assert all(patient[index] > waiters[index].gives_up for index in at_once if not keeps)
    stayed = [index for index in range(CROWD) if index not in at_once]
    expected = serve(model(), [waiters[index] for index in stayed])
    assert served == {stayed[place]: at for place, at in expected.items()}
    assert all(refused[index] == waiters[index].gives_up for index in refused if index not in at_once)
    assert len(served) + len(refused) == CROWD
    assert refused
    assert all(waiters[i].gives_up is None or at <= waiters[i].gives_up for i, at in served.items())
    stats = limiter.stats()
    assert (stats.granted, stats.denied, stats.waiting) == (len(served), len(refused), 0)


def test_a_waiter_that_times_out_could_really_not_have_been_served():
    """Of a known schedule the refusal is right to the nanosecond: one more, and it is granted."""
    for patience, granted in ((300_000_000, True), (299_999_999, False)):
        clock = ManualClock()
        limiter = Limiter("10/s burst 1", clock=clock)
        limiter.acquire()

        async def main(limiter=limiter, clock=clock, patience=patience):
            others = [asyncio.create_task(limiter.acquire_async()) for _ in range(2)]
            await asyncio.sleep(0)
            answer = await asyncio.gather(
                limiter.acquire_async(timeout=patience / SECOND), return_exceptions=True
            )
            moment = clock.now()
            await asyncio.gather(*others)
            return getattr(answer[0], "retry_after", None), moment

        assert run(main(), clock=clock) == ((None, patience) if granted else (0.3, 0))


def test_a_heavy_waiter_gets_its_turn_among_light_loops():
    clock = ManualClock()
    limiter = Limiter("10/s burst 10", clock=clock)
    trace = []

    async def light(name):
        for _ in range(20):
            await limiter.acquire_async()
            trace.append((name, clock.now()))

    async def heavy():
        await clock.sleep_async(1.05)
        assert limiter.peek(cost=8).waiting == 3
        await limiter.acquire_async(cost=8)
        trace.append(("heavy", clock.now()))

    async def main():
        await asyncio.gather(*(light(name) for name in "abc"), heavy())

    run(main(), clock=clock)
    # 20 light ones have gone at 1.0; three stand before it at 1.05, and after the last of them it saves up 8.
    at = trace.index(("heavy", 2_100_000_000))
    assert [moment for name, moment in trace[:at]] == [0] * 10 + [n * SECOND // 10 for n in range(1, 14)]
    assert [moment for name, moment in trace[at + 1 :]] == [n * SECOND // 10 for n in range(22, 59)]


def test_a_heavy_waiter_is_not_starved_by_callers_that_poll():
    clock = ManualClock()
    limiter = Limiter("10/s burst 10", clock=clock)
    polls = []

    async def poll():
        while clock.now() < 3 * SECOND:
            if limiter.try_acquire():
                polls.append(clock.now())
            else:
                assert limiter.peek().remaining == 0
            await clock.sleep_async(0.001)

    async def heavy():
        await clock.sleep_async(0.5005)
        await limiter.acquire_async(cost=8)
        return clock.now()

    async def main():
        served, *_ = await asyncio.gather(heavy(), poll(), poll())
        return served

    served = run(main(), clock=clock)
    assert served == 1_300_000_000
    assert not [moment for moment in polls if 500_500_000 <= moment < served]
    assert len([moment for moment in polls if moment < served]) == 15
    assert [moment for moment in polls if moment > served][:2] == [1_400_000_000, 1_500_000_000]


def test_no_caller_passes_a_waiter_and_peek_counts_the_queue():
    clock = ManualClock()
    limiter = Limiter("10/s burst 10", clock=clock)
    assert limiter.try_acquire(cost=5)

    async def main():
        heavy = asyncio.create_task(limiter.acquire_async(cost=8))
        await asyncio.sleep(0)
        denied = limiter.try_acquire()
        assert (denied.retry_after, denied.status.waiting, denied.status.remaining) == (0.4, 1, 0)
        status = limiter.peek(cost=2)
        assert (status.retry_after, status.exact, status.waiting) == (0.5, True, 1)
        await heavy
        assert clock.now() == 300_000_000
        assert limiter.peek().waiting == 0

    run(main(), clock=clock)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_peek_forgets_a_waiter_that_gave_up(victim):
    limiter = Limiter("10/s burst 1")

    async def main():
        await limiter.acquire_async()
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(3)]
        await asyncio.sleep(0)
        assert limiter.peek().retry_after == 0.4
        tasks[victim].cancel()
        await asyncio.gather(tasks[victim], return_exceptions=True)
        assert limiter.peek().retry_after == 0.3
        await asyncio.gather(*tasks, return_exceptions=True)
        return asyncio.get_running_loop().time()

    assert run(main()) == 0.2


def test_a_long_wait_is_logged_once(caplog):
    """More than a minute; the log names the limiter and says how long it was."""
    clock = ManualClock(autojump=True)
    short, long = Limiter("1/s", clock=clock), Limiter("1 per 100s", name="reports", clock=clock)
    for _ in range(3):
        short.acquire()
    assert not caplog.records
    for _ in range(3):
        long.acquire()
    [record] = caplog.records
    assert record.name == "headway"
    assert "limiter 'reports' ('1/100s'): a permit was waited for 100 s" in record.getMessage()
