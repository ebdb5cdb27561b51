"""Requests on a shared engine that no task waits for: answered as for a task, given back where the peer has gone."""

import asyncio
import gc

import pytest

from headway import LimiterClosed
from headway.service.envoy.calls import replied
from headway.service.envoy.client_codec import decode_response, encode_request
from headway.service.grpc.status import GrpcStatus
from service.envoy.asking import OK, OVER, codes, descriptor, remaining, request, service_of
from waiting import NEVER

RULES = """  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: many, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: two, limit: "3/hour; 9/day"}
"""


class Call:
    """A call of a transport, for one `begin`."""

    def __init__(self, service):
        self.service = service
        self.said = asyncio.get_running_loop().create_future()

    def answer(self, message):
        self.said.set_result(decode_response(message))

    def fail(self, error):
        self.said.set_exception(error)

    def otherwise(self, call, answer):
        async def task():
            call.said.set_result(await replied(self.service, answer))

        return asyncio.get_running_loop().create_task(task())

    def begin(self, *pairs, **options):
        return self.service.shared_quick.begin(
            encode_request(request(*pairs, **options)), self, self.otherwise
        )


async def ask(service, *pairs, **options):
    call = Call(service)
    assert call.begin(*pairs, **options) is not None
    said = await call.said
    return said if not hasattr(said, "message") else decode_response(said.message)


@pytest.fixture
def engine(valkey):
    return {"engine": valkey.url, "engine_timeout": NEVER}


def test_grants_denials_and_statuses_without_a_task(engine):
    async def main():
        service = service_of(RULES, **engine)
        await ask(service, "user=a")
        tasks = len(asyncio.all_tasks())
        call = Call(service)
        pending = call.begin("user=a")
        assert pending is not None
        assert not pending.done()
        assert len(asyncio.all_tasks()) == tasks
        assert remaining(await call.said) == [1]
        assert pending.done()
        found = [await ask(service, "user=a") for _ in range(3)]
        assert [codes(each) for each in found] == [[OK], [OVER], [OVER]]
        figures = {sample.name.rpartition("_limit_")[2]: sample.value for sample in service.stats.samples()}
        assert (figures["total_hits"], figures["within_limit"], figures["over_limit"]) == (5, 3, 2)
        service.close()

    asyncio.run(main())


def test_of_many_keys_at_once_each_has_its_own_answer(engine):
    async def main():
        service = service_of(RULES, **engine)
        calls = [f"user={number % 40}" for number in range(200)]
        found = await asyncio.gather(*(ask(service, pair) for pair in calls))
        passed: dict[str, int] = {}
        for pair, each in zip(calls, found, strict=True):
            passed[pair] = passed.get(pair, 0) + (each.overall_code == OK)
        assert set(passed.values()) == {3}
        service.close()

    asyncio.run(main())


def test_what_is_not_usual_is_left_to_a_handler(engine):
    async def main():
        service = service_of(RULES, max_keys=1, **engine)
        assert Call(service).begin("two=1") is None
        assert Call(service).begin("nothing=1") is None
        await ask(service, "user=a")
        assert Call(service).begin("user=b") is None, "there is no room for its key"
        begin = service.shared_quick.begin
        service.close()
        assert begin(encode_request(request("user=a")), None, None) is None

    asyncio.run(main())


def test_a_limiter_that_was_closed_is_left_to_a_handler_which_says_so(engine):
    async def main():
        service = service_of(RULES, **engine)
        await ask(service, "user=a")
        service._limiters.close()
        assert Call(service).begin("user=a") is None
        with pytest.raises(LimiterClosed):
            await service.shared_quick.decide(service.shared_quick.find(encode_request(request("user=a"))))

    asyncio.run(main())


def test_a_peer_that_goes_gets_nothing_and_what_was_granted_comes_back(valkey):
    server = valkey

    async def main():
        service = service_of(RULES, engine=server.url, engine_timeout=NEVER)
        assert remaining(await ask(service, "user=a")) == [2]
        server.stop()
        try:
            calls = [Call(service) for _ in range(4)]
            pending = [call.begin("user=a") for call in calls]
            await asyncio.sleep(0.05)  # one is under way, the others wait for it
            for each in pending:
                each.cancel()
                each.cancel()
        finally:
            server.cont()
        for _ in range(400):  # an end is posted, and not waited for
            looked = await service.decide(request(descriptor("user=a", hits_addend=0)))
            if remaining(looked) == [2]:
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail(f"what was granted did not come back: {looked}")
        assert not any(call.said.done() for call in calls)
        service.close()

    asyncio.run(main())


def test_a_server_that_is_killed_amid_many_keys_and_comes_back_is_heard_of_by_every_call(valkey):
    server = valkey

    async def main():
        service = service_of(RULES, engine=server.url, engine_timeout=0.3)
        await asyncio.gather(*(ask(service, f"many={number}") for number in range(50)))
        calls = [Call(service) for _ in range(100)]
        server.stop()
        for number, call in enumerate(calls):
            assert call.begin(f"many={number % 50}") is not None
        await asyncio.sleep(0.02)
        server.kill()
        said = await asyncio.wait_for(asyncio.gather(*(call.said for call in calls)), NEVER)
        assert {reply.status for reply in said} == {GrpcStatus.UNAVAILABLE}
        server.restart()
        again = Call(service)
        assert again.begin("many=1") is not None
        reply = await again.said
        # The ledger was lost, which is noticed: nothing is granted until its grants are harmless.
        assert decode_response(reply.message).overall_code == OVER
        service.close()

    asyncio.run(main())


def test_an_engine_that_does_not_answer_is_said_or_stood_in_for():
    async def main():
        away = {"engine": "redis://127.0.0.1:1/0", "engine_timeout": 0.05}
        closed = service_of(RULES, **away)
        call = Call(closed)
        assert call.begin("user=a") is not None
        assert ((await call.said).status, closed.stats.engine_errors) == (GrpcStatus.UNAVAILABLE, 1)
        local = service_of(RULES, on_engine_error="local", local_share=0.4, **away)
        assert [codes(await ask(local, "user=a")) for _ in range(2)] == [[OK], [OVER]]

    asyncio.run(main())


def test_a_waiter_that_is_told_before_it_knows_its_decision_answers_all_the_same(engine, monkeypatch):
    from headway.engines.redis.client.ledgers import RedisLedgers

    async def main():
        service = service_of(RULES, **engine)
        await ask(service, "user=a")
        quick = service.shared_quick
        part = quick.find(encode_request(request("user=a")))
        decision = await part.ledgers.send_async(part.command, asyncio.get_running_loop())

        class Prompt:
            def ask(self, command, loop, waiter):
                waiter.set_result(None)
                return decision

            def __getattr__(self, name):
                return getattr(part.ledgers, name)

        call = Call(service)
        real, part.ledgers = part.ledgers, Prompt()
        assert isinstance(real, RedisLedgers)
        pending = call.begin("user=a")
        part.ledgers = real
        assert pending.done()
        assert remaining(await call.said) == [1]
        service.close()

    asyncio.run(main())


def test_hits_are_refunded_by_their_receipts_the_oldest_first(engine):
    async def main():
        service = service_of(RULES, **engine)
        for _ in range(3):
            assert codes(await ask(service, "user=a")) == [OK]
        assert codes(await ask(service, "user=a")) == [OVER]
        refunds = service.shared_quick.find(encode_request(request("user=a"))).refunds
        assert len(refunds) == 3
        await service.decide(request(descriptor("user=a", hits_addend=2, is_negative_hits=True)))
        assert len(refunds) == 1
        for _ in range(400):  # ends are posted, and not waited for
            found = await ask(service, "user=a", hits_addend=2)
            if codes(found) == [OK]:
                break
            await asyncio.sleep(0.02)
        assert remaining(found) == [0]
        service.close()

    asyncio.run(main())


def test_no_cycle_is_left_for_the_collector(engine):
    async def main():
        service = service_of(RULES, **engine)
        for _ in range(3):
            await ask(service, "many=a")
        gc.collect()
        gc.disable()
        try:
            for _ in range(50):
                await ask(service, "many=a")
            kinds = [type(found).__name__ for found in gc.get_objects()]
        finally:
            gc.enable()
        assert kinds.count("PendingAnswer") + kinds.count("RoundTrip") + kinds.count("Acquire") < 10
        service.close()

    asyncio.run(main())
