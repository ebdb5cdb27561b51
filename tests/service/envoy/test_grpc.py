# mypy: disable-error-code="union-attr"
"""The service over gRPC on loopback, on both transports, by a client of grpcio: answers, errors, health, the end."""

import asyncio
import re
from contextlib import asynccontextmanager

import pytest

from headway import InvalidArgument
from headway.service.envoy.client_codec import decode_response, encode_request
from headway.service.envoy.codec import MAX_MESSAGE, MAX_TEXT
from service.envoy.asking import OK, OVER, codes, descriptor, remaining, request, service_of

grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install grpcio")
from headway.service.envoy import calls, grpc_server  # noqa: E402 - after the check
from headway.service.grpc import on_nghttp2  # noqa: E402

USERS = "  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}"
NEVER = 30
NO_PROXY = [("grpc.enable_http_proxy", 0)]


@pytest.fixture(params=["nghttp2", "grpcio"])
def transport(request):
    if request.param == "nghttp2" and not on_nghttp2():
        pytest.skip("needs the compiled form and libnghttp2: apt-get install gcc libc6-dev libnghttp2-14")
    return request.param


class Client:
    def __init__(self, channel):
        self.channel = channel

    async def raw(self, method, data):
        return await self.channel.unary_unary(method)(data, timeout=NEVER)

    async def ask(self, *descriptors, **fields):
        data = encode_request(request(*descriptors, **fields))
        return decode_response(await self.raw(calls.SHOULD_RATE_LIMIT, data))

    async def error(self, method, data):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.raw(method, data)
        return caught.value.code(), caught.value.details()

    async def health(self, name=""):
        data = b"" if not name else b"\x0a" + bytes([len(name)]) + name.encode()
        return await self.raw(calls.HEALTH_CHECK, data)


@asynccontextmanager
async def serving(service, transport):
    server = await grpc_server.start(service, transport=transport)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", NO_PROXY) as channel:
            yield Client(channel), server
    finally:
        await server.stop(0)


def run(main):
    asyncio.run(asyncio.wait_for(main(), NEVER))


def test_requests_are_over_the_limit_from_the_next_one_on(transport):
    async def main():
        async with serving(service_of(USERS), transport) as (client, _):
            found = [await client.ask("user=a") for _ in range(5)]
            assert [each.overall_code for each in found] == [OK] * 3 + [OVER] * 2
            assert [remaining(each) for each in found] == [[2], [1], [0], [0], [0]]
            assert codes(await client.ask("user=b", "user=a", "none=1")) == [OK, OVER, OK]

    run(main)


def test_many_at_once_pass_up_to_the_limit_and_no_more(transport):
    async def main():
        service = service_of("  - {key: user, rate_limit: {unit: hour, requests_per_unit: 50}}")
        async with serving(service, transport) as (client, _):
            found = await asyncio.gather(*(client.ask("user=a") for _ in range(200)))
            assert sum(each.overall_code == OK for each in found) == 50

    run(main)


@pytest.mark.parametrize(
    ("data", "code", "details"),
    [
        (b"\xff" * 20, "INVALID_ARGUMENT", "longer than 10 bytes"),
        (b"", "INVALID_ARGUMENT", "the domain is empty"),
        (encode_request(request()), "INVALID_ARGUMENT", "no descriptors"),
        (
            encode_request(request(descriptor("user=" + "a" * (MAX_TEXT + 1)))),
            "INVALID_ARGUMENT",
            "at most 16384",
        ),
        (b"\x0a\x00" * MAX_MESSAGE, "RESOURCE_EXHAUSTED", "larger than max|at most"),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_and_the_next_one_too(data, code, details, transport):
    async def main():
        service = service_of(USERS)
        async with serving(service, transport) as (client, _):
            found = await client.error(calls.SHOULD_RATE_LIMIT, data)
            assert (found[0].name, bool(re.search(details, found[1]))) == (code, True), found
            assert (await client.ask("user=a")).overall_code == OK
            assert service.stats.malformed == (code == "INVALID_ARGUMENT")

    run(main)


def test_an_engine_that_does_not_answer_is_unavailable_or_as_the_options_say(transport):
    away = {"engine": "redis://127.0.0.1:1/0", "engine_timeout": 0.05}

    async def main():
        service = service_of(USERS, **away)
        async with serving(service, transport) as (client, _):
            code, details = await client.error(calls.SHOULD_RATE_LIMIT, encode_request(request("user=a")))
            assert (code, service.stats.engine_errors) == (grpc.StatusCode.UNAVAILABLE, 1)
            assert "the engine does not answer" in details
            assert "127.0.0.1:1" not in details  # which the log has
        async with serving(service_of(USERS, on_engine_error="open", **away), transport) as (client, _):
            assert (await client.ask("user=a", hits_addend=1000)).overall_code in (OK, OVER)
            assert (await client.ask("user=a")).overall_code == OK

    run(main)


def test_a_mistake_of_ours_is_an_answer_too(caplog, monkeypatch, transport):
    async def main():
        service = service_of(USERS)
        async with serving(service, transport) as (client, _):
            monkeypatch.setattr(service, "plan", lambda request: 1 / 0)
            code, details = await client.error(calls.SHOULD_RATE_LIMIT, encode_request(request("user=a")))
            assert (code, "division" in details) == (grpc.StatusCode.INTERNAL, False)

    run(main)
    assert "ZeroDivisionError" in caplog.text


def test_health_and_methods_that_are_not_there(transport):
    async def main():
        async with serving(service_of(USERS), transport) as (client, server):
            assert await client.health() == await client.health(calls.SERVICE) == b"\x08\x01"
            code, details = await client.error(calls.HEALTH_CHECK, b"\x0a\x03abc")
            assert (code, calls.SERVICE in details) == (grpc.StatusCode.NOT_FOUND, True)
            assert (await client.error(calls.HEALTH_CHECK, b"\xff"))[0] == grpc.StatusCode.INVALID_ARGUMENT
            assert (await client.error("/a.B/C", b""))[0] == grpc.StatusCode.UNIMPLEMENTED
            server.serving = False
            assert await client.health() == b"\x08\x02"

    run(main)


def test_a_server_that_stops_lets_calls_end_and_takes_no_new_ones(transport):
    async def main():
        service = service_of(USERS)
        begun, go_on = asyncio.Event(), asyncio.Event()
        decide = service.decide

        async def slow(request):
            begun.set()
            await go_on.wait()
            return await decide(request)

        service.decide, service.quick = slow, None
        async with serving(service, transport) as (client, server):
            call = asyncio.create_task(client.ask("user=a"))
            await begun.wait()
            stopping = asyncio.create_task(server.stop(NEVER))
            await asyncio.sleep(0)
            go_on.set()
            assert (await call).overall_code == OK
            await stopping
            code, _ = await client.error(calls.SHOULD_RATE_LIMIT, encode_request(request("user=a")))
            assert code == grpc.StatusCode.UNAVAILABLE

    run(main)


def test_a_port_that_is_taken_is_said(transport):
    async def main():
        async with serving(service_of(USERS), transport) as (_, server):
            with pytest.raises(InvalidArgument, match=str(server.port)):
                await grpc_server.start(service_of(USERS), port=server.port, transport=transport)

    run(main)
