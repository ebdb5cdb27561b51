# mypy: disable-error-code="attr-defined, union-attr"
"""Forks, event loops, interrupts, ends of processes: whatever happens, waiters and permits are accounted for."""

import asyncio
import contextlib
import random
import signal
import threading

import pytest
from tests.redis.workers import most_in_any

from headway import Limiter, Remote, Window
from headway.engines.redis.client.requests import Release
from headway.outcome import Outcome
from waiting import NEVER, SOON, wait_until

pytestmark = pytest.mark.realtime


def test_a_forked_child_decides_for_itself(crew, valkey):
    """Fork after the pool is open, and while threads wait; parent and children decide at once."""
    worker = crew.start(
        valkey.url,
        """
limiter = make("1/hour burst 300")
queue = make("1 concurrent", name="queue" + limiter.name)
def work():
    while limiter.try_acquire():
        use()
async def work_async():
    while await limiter.try_acquire_async():
        use()
def wait_in_line():
    for _ in range(5):
        with queue:
            pass
limiter.acquire(); use()
asyncio.run(limiter.acquire_async()); use()
held = queue.acquire()
threads = [threading.Thread(target=wait_in_line) for _ in range(3)]
for thread in threads: thread.start()
while queue.peek().waiting < 3: time.sleep(0.01)
import warnings
warnings.simplefilter("ignore", ResourceWarning)  # of the parent's transport, which the child drops
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        inner = [threading.Thread(target=target) for target in (work, work, wait_in_line, wait_in_line)]
        for thread in inner: thread.start()
        asyncio.run(work_async())
        for thread in inner: thread.join()
        os._exit(0)
    children.append(pid)
work()
held.complete()
for thread in threads: thread.join()
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
time.sleep(0.1)
status = queue.peek()
say(codes, status.waiting, status.in_flight)
""",
    )
    assert worker.hear() == "[0, 0, 0] 0 0"
    assert worker.join() == ""
    assert len(crew.uses()) == 300


FORKED = {
    # As RQ does it: a child for each job, one call in it, and no atexit.
    "os._exit": """
for _ in range(10):
    child = os.fork()
    if child == 0:
        with limiter: use()
        os._exit(0)
    os.waitpid(child, 0)
""",
    "multiprocessing": """
import multiprocessing
def work():
    for _ in range(3):
        with limiter: use()
for _ in range(10):
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
""",
}


@pytest.mark.parametrize("how", FORKED)
def test_a_child_that_ends_right_after_a_call_has_said_that_it_ended(crew, valkey, how):
    """Or its permits would count for as long as a call may take, and a limit of 5 at a time be 5 per lease."""
    limit = Window(1000, per=60, remote=Remote(max_transit=60))
    worker = crew.start(valkey.url, f"limiter = make({limit!r})\n{FORKED[how]}\nsay('done')")
    assert worker.hear() == "done"
    worker.join()
    assert len(crew.uses()) == (10 if how == "os._exit" else 30)
    limiter = Limiter(limit, name=crew.name, engine=valkey.url)
    wait_until(lambda: limiter.peek().in_flight == 0, "every end")


def test_a_limiter_goes_to_a_spawned_process(crew, valkey):
    worker = crew.start(
        valkey.url,
        """
import multiprocessing, operator
limiter = make("3/minute")
limiter.acquire()
with multiprocessing.get_context("spawn").Pool(1) as pool:
    say([bool(pool.apply(operator.methodcaller("try_acquire"), (limiter,))) for _ in range(0)])
    import pickle
    say(limiter.name == pickle.loads(pickle.dumps(limiter)).name)
    pool.apply(operator.methodcaller("pause", 0), (limiter,))
    pool.apply(operator.methodcaller("pause", 60), (limiter,))
say(limiter.try_acquire().reason)
""",
    )
    assert worker.hear() == "[]"
    assert worker.hear() == "True"
    assert worker.hear() == "paused"
    worker.join()


def test_two_loops_at_once_and_one_after_the_other(valkey, name):
    limiter = Limiter("2 concurrent", name=name, engine=valkey.url)
    inside, most = [], []

    async def call():
        async with limiter:
            inside.append(1)
            most.append(len(inside))
            await asyncio.sleep(0.001)
            inside.pop()

    async def main():
        async with asyncio.timeout(NEVER):
            await asyncio.gather(*(call() for _ in range(20)))

    for _ in range(2):
        threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(NEVER)
    assert len(most) == 80
    assert max(most) <= 2
    wait_until(lambda: limiter.peek().in_flight == 0, "all handed back")


def test_a_loop_that_ends_with_waiters_leaves_none(valkey, name):
    limiter = Limiter("1 concurrent", name=name, engine=f"{valkey.url}?lease=300")
    held = limiter.acquire()

    async def main():
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(5)]
        while (await limiter.peek_async()).waiting < 5:  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.01)
        return tasks

    asyncio.run(main())
    wait_until(lambda: limiter.peek().waiting == 0, "an empty queue")
    held.complete()
    limiter.acquire(timeout=NEVER).complete()


def test_ctrl_c_gives_the_place_back(crew, valkey):
    url = f"{valkey.url}?lease=300"
    limiter = Limiter("1 concurrent", name=crew.name, engine=url)
    held = limiter.acquire()
    worker = crew.start(
        url,
        """
limiter = make("1 concurrent")
say("waits")
try:
    limiter.acquire()
except KeyboardInterrupt:
    say("interrupted")
    time.sleep(60)
""",
    )
    assert worker.hear() == "waits"
    wait_until(lambda: limiter.peek().waiting == 1, "a waiter")
    worker.process.send_signal(2)
    assert worker.hear() == "interrupted"
    wait_until(lambda: limiter.peek().waiting == 0, "its place")
    held.complete()
    limiter.acquire(timeout=NEVER).complete()


def test_ctrl_c_in_the_middle_of_a_question(valkey, name, monkeypatch):
    """The server has acted when the thread is interrupted: what was granted to the one that is gone goes back."""
    limiter = Limiter("10 concurrent", name=name, engine=f"{valkey.url}?lease=300")
    watch = Limiter("10 concurrent", name=name, engine=f"{valkey.url}?lease=300", engine_timeout=1)
    limiter.acquire().complete()
    pool = limiter._shared._engine.pools()[0]
    take = pool.take

    class Interrupted:
        """Half a connection: it asks, and is interrupted before it hears."""

        def __init__(self, connection):
            self.wire, self.ident, self.close, self.limit, self.usual = (
                connection,
                connection.ident,
                connection.close,
                connection.limit,
                connection.usual,
            )

        def call(self, payload):
            self.wire.call(payload)
            raise KeyboardInterrupt

    def take_once(deadline):
        pool.take = take
        return Interrupted(take(deadline))

    pool.take = take_once
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire()
    wait_until(lambda: watch.peek().in_flight == 0, "the grant that no caller got")
    limiter.acquire().complete()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may meet a finalizer
def test_a_signal_at_any_moment_affects_no_other_caller(valkey, name):
    """Its handler raises in the main thread, as those of job queues do; others travel with the same commands."""
    limiter = Limiter("1000000/s", name=name, engine=valkey.url, engine_timeout=2)
    limiter.acquire()
    chance = random.Random(1)
    over = threading.Event()
    outcomes: list[BaseException] = []

    class TooLong(Exception):
        pass

    def give_up(*_):
        raise TooLong

    def work():
        while not over.is_set():
            try:
                limiter.acquire()
            except BaseException as error:  # noqa: BLE001 - it is looked at
                outcomes.append(error)

    before = signal.signal(signal.SIGALRM, give_up)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(1000):
            with contextlib.suppress(TooLong):
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 4e-4))
                limiter.acquire()
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        over.set()
    for thread in threads:
        thread.join(NEVER)
    assert not any(thread.is_alive() for thread in threads)
    assert not outcomes
    limiter.acquire()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a finalizer of redis-py
def test_a_signal_at_every_moment_of_an_end(valkey, name):
    """Its handler raises while a release is written: the next caller can write, and all releases arrive."""
    limit = Window(10_000, per=60, remote=Remote(max_transit=60))
    limiter = Limiter(limit, name=name, engine=valkey.url, engine_timeout=5)
    limiter.acquire().complete()
    chance = random.Random(1)
    asks = [limiter.acquire() for _ in range(2000)]
    engine, posts = limiter._shared._engine, limiter._shared._engine.pools()[0].release_sender

    class TooLong(Exception):
        pass

    def give_up(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, give_up)
    try:
        for permit in asks:
            with contextlib.suppress(TooLong):
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 2e-4))
                    engine.post_now(Release(permit._decision, Outcome.COMPLETE))
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for permit in asks:
        permit._end = Outcome.COMPLETE
    limiter.acquire().complete()
    wait_until(lambda: engine.worker.wake() or not posts.outstanding, "an answer to each")


# Around a call a window would keep what was cancelled for its transit: the call may have been sent.
LIMITS = ("1 concurrent", "100/s burst 2", Window(50, per="100ms", remote=False))


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_cancellation_at_every_moment(valkey, name, limit):
    limiter = Limiter(limit, name=name, engine=valkey.url)
    chance = random.Random(str(limit))
    ended = []

    async def call():
        async with limiter:
            ended.append(1)
            await asyncio.sleep(0)

    async def main():
        tasks = []
        for turn in range(300):
            task = asyncio.create_task(call())
            tasks.append(task)
            asyncio.get_running_loop().call_later(chance.random() * 0.03, task.cancel)
            if turn % 10 == 0:
                await asyncio.sleep(chance.random() * 0.004)
        async with asyncio.timeout(NEVER):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert not [task for task in tasks if not task.cancelled() and task.exception() is not None]
        async with asyncio.timeout(NEVER):
            while (status := await limiter.peek_async()).waiting or status.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await call()

    asyncio.run(main())
    assert limiter.stats().waiting == 0


def test_a_dropped_permit_is_told_and_comes_back(valkey, name):
    limiter = Limiter("1 concurrent", name=name, engine=f"{valkey.url}?lease=0.5")
    permit = limiter.acquire()
    with pytest.warns(ResourceWarning, match="dropped without an end"):
        del permit
    assert limiter.stats().abandoned == 1
    limiter.acquire(timeout=NEVER).complete()


@pytest.mark.parametrize("how", ["threads", "tasks", "waits", "waits_async", "unreachable"])
def test_a_process_ends_without_a_word(crew, valkey, how):
    """Not even a warning, and at once: neither threads that wait nor those of the engine keep it alive."""
    held = Limiter("1 concurrent", name=crew.name, engine=valkey.url).acquire() if "waits" in how else None
    script = {
        "threads": "limiter.acquire().complete()",
        "tasks": """
asyncio.run(limiter.acquire_async()).complete()
asyncio.run(limiter.acquire_async()).complete()
""",
        "waits": """
threading.Thread(target=limiter.acquire, daemon=True).start()
time.sleep(0.2)
""",
        "waits_async": """
async def main():
    task = asyncio.create_task(limiter.acquire_async())
    await asyncio.sleep(0.2)
asyncio.run(main())
""",
        "unreachable": """
import logging
logging.getLogger("headway").addHandler(logging.NullHandler())
make("1 concurrent", engine="redis://127.0.0.1:1/0", on_engine_error="open").acquire()
""",
    }[how]
    worker = crew.start(valkey.url, f"limiter = make('1 concurrent')\n{script}\nsay('end')")
    assert worker.hear() == "end"
    assert worker.join(SOON) == ""
    if held is not None:
        held.complete()


def test_spacing_across_forks(crew, valkey):
    worker = crew.start(
        valkey.url,
        """
import multiprocessing
limiter = make("1 every 50ms")
limiter.acquire(); use()
def work():
    for _ in range(4):
        with limiter: use()
children = [multiprocessing.get_context("fork").Process(target=work) for _ in range(4)]
for child in children: child.start()
work()
for child in children: child.join()
say([child.exitcode for child in children])
""",
    )
    assert worker.hear() == "[0, 0, 0, 0]"
    worker.join()
    uses = crew.uses()
    assert len(uses) == 21
    assert most_in_any(0.05, uses) == 1
