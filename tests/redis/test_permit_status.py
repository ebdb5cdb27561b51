"""The status of a permit comes with its grant: headers of an answer that was let through cost no second round trip."""

import asyncio
from typing import Any

import pytest

from headway import FixedWindow, Limiter, Spacing
from headway.engines.redis.client.requests import NOTHING, Peek, Request
from headway.engines.redis.client.round_trip import RoundTrip
from headway.engines.redis.net.connections import exchange
from waiting import NEVER

LIMITS = {
    "window": "5/hour",
    "bucket": "5/hour burst 5",
    "concurrency": "5 concurrent",
    "several": "5/hour; 9 concurrent",
}


def commands(server):
    return server.client().info("commandstats")["cmdstat_evalsha"]["calls"]


def use(limiter, verb, key):
    """(remaining, as the engine said with each grant) for three permits, which are held meanwhile."""
    permits, remaining = [], []
    for _ in range(3):
        permits.append(getattr(limiter, verb)(key))
        remaining.append(permits[-1].status.remaining)
    for permit in permits:
        permit.complete()
    return remaining


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("verb", ["acquire", "try_acquire"])
def test_it_says_how_the_limit_stood_after_the_grant(server, name, limit, verb):
    limiter = Limiter(limit, name=name, engine=server.url, engine_timeout=NEVER)
    assert use(limiter, verb, None) == [4, 3, 2]
    assert use(limiter, verb, "a") == [4, 3, 2]


def test_only_the_first_look_is_a_round_trip(valkey, name):
    limiter = Limiter("9/hour", name=name, engine=valkey.url, engine_timeout=NEVER)
    limiter.acquire().status  # noqa: B018 - from now on, grants say it
    before = commands(valkey)
    statuses = [limiter.acquire().status for _ in range(4)]
    assert [status.remaining for status in statuses] == [7, 6, 5, 4]
    assert all(status.headers()["X-RateLimit-Limit"] == "9" for status in statuses)
    assert commands(valkey) == before + 4


def test_in_a_task_the_first_look_does_not_block_the_loop(valkey, name):
    limiter = Limiter("9/hour", name=name, engine=valkey.url, engine_timeout=NEVER)

    async def main():
        permits = [await limiter.acquire_async() for _ in range(2)]
        looks = [asyncio.ensure_future(permit.status_async()) for permit in permits]
        await asyncio.sleep(0)
        assert not any(look.done() for look in looks), "the loop has run while the engine was asked"
        first = [(await look).remaining for look in looks]
        before = commands(valkey)
        later = await limiter.acquire_async()
        assert ((await later.status_async()).remaining, commands(valkey)) == (6, before + 1)
        return first

    assert asyncio.run(main()) == [7, 7]


def test_a_status_is_of_its_grant_and_not_of_the_moment_it_is_read(valkey, name):
    limiter = Limiter("9/hour", name=name, engine=valkey.url, engine_timeout=NEVER)
    limiter.acquire().status  # noqa: B018
    permit = limiter.acquire()
    limiter.acquire(cost=5)
    assert (permit.status.remaining, limiter.peek().remaining) == (7, 2)


def test_metrics_and_costs(valkey, name):
    limiter = Limiter(
        {"calls": "9/hour", "tokens": "100/hour"}, name=name, engine=valkey.url, engine_timeout=NEVER
    )
    for left in ((8, 60), (7, 20)):
        status = limiter.acquire(cost={"calls": 1, "tokens": 40}).status
        assert (status["calls"].remaining, status["tokens"].remaining) == left


def test_tasks_that_travel_together(valkey, name):
    """Requests of one batch are told how the limit stands after all of them."""
    limiter = Limiter("90/hour", name=name, engine=valkey.url, engine_timeout=NEVER)

    async def main():
        (await limiter.acquire_async()).status  # noqa: B018
        before = commands(valkey)
        permits = await asyncio.gather(*(limiter.acquire_async(cost=1 + number % 2) for number in range(40)))
        sent = commands(valkey)
        remaining = {permit.status.remaining for permit in permits}
        assert commands(valkey) == sent < before + 40
        return remaining

    remaining = asyncio.run(main())
    assert min(remaining) == limiter.peek().remaining == 90 - 1 - 60
    assert max(remaining) < 89


def test_denials_and_waiters_beside_it(valkey, name):
    limiter = Limiter("2/hour", name=name, engine=valkey.url, engine_timeout=NEVER)
    assert [limiter.try_acquire().status.remaining for _ in range(4)] == [1, 0, 0, 0]
    assert not limiter.try_acquire()


KINDS: dict[str, Any] = {
    "window": "5/hour",
    "bare window": "5/hour",
    "bucket": "5/hour burst 5",
    "parts of a bucket": "7/hour burst 3",
    "spacing": Spacing("10s"),
    "calendar": FixedWindow(5, per="day"),
    "concurrency": "5 concurrent",
}


def exchange_once(ledger, batch):
    """Send them in one command of a stream of its own, whatever else is sent meanwhile."""
    engine = ledger.registry.engine
    connection = engine.only_pool.take()
    round_trip = RoundTrip(ledger, batch, engine.new_stream(), 1, connection.ident)
    answer = connection.call(round_trip.encode())
    if not round_trip.settle(answer):
        exchange(connection, round_trip.resolve(answer))
    engine.only_pool.put_back(connection)


@pytest.mark.parametrize("kind", KINDS)
def test_the_short_way_of_a_script_says_what_the_long_one_says(valkey, name, kind):
    """A look is answered before the rest of the script is defined; behind a command of no consequence, by that."""
    options: Any = {"remote": False} if kind == "bare window" else {}
    limiter = Limiter(KINDS[kind], name=name, engine=valkey.url, engine_timeout=NEVER, **options)
    shared: Any = limiter._shared
    registry = shared.ledgers.registry
    permits: list[Any] = [limiter.acquire()]
    for _ in range(2):
        ledger = registry.ledger((None,))
        for cost in (0, 1, 3):
            short, long = Peek(ledger, (cost,)), Peek(ledger, (cost,))
            exchange_once(ledger, [short, Request(ledger, NOTHING), long])
            assert short.raw_rows == long.raw_rows != []
        permits.append(limiter.try_acquire())
    for permit in filter(None, permits):
        permit.complete()
