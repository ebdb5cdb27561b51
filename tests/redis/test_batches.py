# mypy: disable-error-code="attr-defined, union-attr"
"""Many in one command: a batch of questions is answered as if each had come alone, in their order, at that moment.

The script takes short cuts for requests of the same kind (one command with a count, one answer with a mark for each),
so its answers are compared with the core's, one question after the other.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from core.script_traces import START
from headway import Limiter
from headway.core.ledger import EXACT
from headway.core.limits import Bucket, Concurrency, FixedWindow, Spacing, Window
from headway.core.remote import Remote
from headway.engines.redis.client.batching import thread_batcher
from headway.engines.redis.client.requests import Acquire, Release, Request
from headway.engines.redis.script.protocol import DENIED, GRANTED, NOW, STANDING, WAIT
from headway.outcome import Outcome

LIMITS = {
    "bucket": Bucket("1000/s", burst=40),
    "a bucket of parts": Bucket("700/s", burst=40),
    "window": Window(50, per=1),
    "a coarse window": Window(5000, per=1),
    "window with a remote": Window(50, per=1, remote=Remote(max_transit=0.5)),
    "spacing": Spacing("1ms"),
    "fixed window": FixedWindow(60, per="minute"),
    "concurrency": Concurrency(40),
}


class Alone:
    """What the core says to one question after the other."""

    def __init__(self, rule):
        self.ledger = rule.open()

    def call(self, cost, now):
        if cost > self.ledger.rule.capacity or self.ledger.wait(now, cost) > 0:
            return None
        mark = self.ledger.take(now, cost)
        # A time that never was is nearer for a script.
        return mark, max(self.ledger.tally, -EXACT)

    def end(self, now, how, cost, mark, tally):
        if how == Outcome.COMPLETE:
            self.ledger.complete(now, cost, mark)
        else:
            self.ledger.cancel(now, cost, mark, tally)


def own(acquire):
    """What is granted here stays granted, although no permit is made of it."""
    acquire.owned = True
    return acquire


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("seed", range(4))
def test_a_batch_is_answered_as_if_each_had_come_alone(server, name, kind, seed):
    random = Random(f"{kind} {seed}")
    limiter = Limiter(LIMITS[kind], name=f"{name}{seed}", engine=server.url, on_ledger_loss="trust")
    engine = limiter._shared._engine
    ledger = limiter._shared.ledgers.registry.ledger((None,))
    alone = Alone(limiter._shared.ledgers.registry.rules[0])
    held: list[tuple[Acquire, int]] = []
    now, several = START, 0
    try:
        for _ in range(60):
            now += random.choice([0, 1, 700, 30_000, 400_000])
            engine.fixed_time = float(now)
            limiter._shared.ledgers.registry.clock_samples.clear()  # time does not run here
            batch: list[Request] = []
            expected: list[tuple[int, ...] | int] = []
            for _ in range(random.randint(1, 6)):
                if held and random.random() < 0.3:
                    acquire, cost = held.pop(random.randrange(len(held)))
                    how = random.choice([Outcome.COMPLETE, Outcome.CANCEL])
                    batch.append(Release(acquire, how))
                    expected.append((how, cost, *(int(part) for part in acquire.marks)))
                    continue
                cost, times = random.choice([1, 1, 1, 2, 7]), random.choice([1, 2, 5, 30])
                batch += [own(Acquire(ledger, (cost,), NOW, 0.0)) for _ in range(times)]
                expected += [cost] * times
            batcher = thread_batcher(ledger)
            batcher.queue.extend(batch[1:])
            batcher.send(batch[0])
            for request, wanted in zip(batch, expected, strict=True):
                if isinstance(wanted, tuple):
                    alone.end(now, *wanted)
                    continue
                assert isinstance(request, Acquire)
                answer = alone.call(wanted, now)
                said = tuple(int(part) for part in request.marks) if request.verdict == GRANTED else None
                assert said == answer, (now, wanted)
                if said is not None:
                    several += 1
                    held.append((request, wanted))
        assert several > 25
    finally:
        engine.fixed_time = 0.0


def test_requests_that_find_nothing_left_queue_in_their_order(server, name):
    """Of thirty equal requests ten are granted. The others stand in the queue, with tickets of their own."""
    limiter = Limiter("10 concurrent", name=name, engine=server.url)
    ledger = limiter._shared.ledgers.registry.ledger((None,))
    batch = [Acquire(ledger, (1,), WAIT) for _ in range(30)]
    batcher = thread_batcher(ledger)
    batcher.queue.extend(batch[1:])
    batcher.send(batch[0])
    assert [acquire.verdict for acquire in batch] == [GRANTED] * 10 + [STANDING] * 20
    assert len({acquire.ticket for acquire in batch}) == 30
    for acquire in batch[:10]:
        acquire.give_back()
    for acquire in batch[10:]:
        acquire.withdraw()
    assert DENIED not in {acquire.verdict for acquire in batch}


@pytest.mark.realtime
@pytest.mark.parametrize("task", [False, True])
def test_a_retry_finds_all_that_was_given_back(valkey, name, task):
    """However many do so at once, as when a pause changes: what is given back goes ahead of the questions."""
    limiter = Limiter(Window(200, per=3600), name=name, engine=valkey.url, engine_timeout=5)
    for permit in [limiter.acquire() for _ in range(200)]:
        permit._decision.give_back(again=True)
    again = asyncio.run(limiter.try_acquire_async(cost=200)) if task else limiter.try_acquire(cost=200)
    assert again
