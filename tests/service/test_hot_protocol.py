"""The connection that answers hot calls: order, pieces, bounds, ends. In virtual time, byte for byte."""

import asyncio
import json
import logging

import pytest
from tests.service.wires import HEALTH, PLAIN, acquire, kinds, request, served

from headway.service.bodies import BODY_SECONDS
from headway.service.config import TokenConfig
from headway.service.hot import LONGEST_HEAD, MOST_HEADS, MOST_HOSTS
from headway.service.protocol import MAX_PIPELINED, READ_ON
from headway.service.running import KEEP_ALIVE
from headway.testing import run

pytestmark = pytest.mark.both_forms

LIMITS = """
[limits.window]
limit = "1000/minute"
[limits.one]
limit = "1/minute"
[limits.calls]
limit = "2 concurrent"
"""
TAKE = acquire(b'{"limit": "window"}')
WAIT = acquire(b'{"limit": "one", "wait": 100}')
LIST = request("GET", "/v1/limits", headers=(("Host", "localhost"),))


def serve(test, text=LIMITS, **options):
    async def main():
        async with served(text, **options) as server:
            await test(server)

    run(main())


class Later:
    """A hot call whose answer comes when the test says so: a shared engine that is slow."""

    def __init__(self, server, monkeypatch):
        self.waiting: list[asyncio.Future[None]] = []
        server.hot.quick = None
        decider = server.service.decider
        decide = decider._by_and_by
        monkeypatch.setattr(decider, "_at_once", lambda take: None)

        async def later(take, wait):
            future = asyncio.get_running_loop().create_future()
            self.waiting.append(future)
            await future
            return await decide(take, wait)

        monkeypatch.setattr(decider, "_by_and_by", later)

    def answer(self, index):
        self.waiting[index].set_result(None)


def test_answers_of_one_read_leave_with_one_write():
    async def test(server):
        connection = server.connect()
        connection.send(TAKE * 50 + HEALTH)
        assert len(connection.wire.written) == 1, "in the same turn of the loop"
        found = connection.answers().found
        assert kinds(found) == ["granted"] * 50 + ["status"]
        left = [json.loads(said.body)["status"]["remaining"] for said in found[:50]]
        assert left == list(range(999, 949, -1))
        assert server.asked == []
        assert server.state.total_requests == 51

    serve(test)


def test_a_hot_call_behind_one_that_waits_keeps_its_place():
    async def test(server):
        connection = server.connect()
        connection.send(acquire(b'{"limit": "one"}') + WAIT + HEALTH + TAKE)
        await asyncio.sleep(59)
        assert kinds(connection.answers().found) == ["granted"], "the one before it; the others wait"
        other = server.connect()
        other.send(TAKE)
        assert len(other.answers().found) == 1, "another connection goes on"
        await asyncio.sleep(2)
        found = connection.answers().found
        assert kinds(found) == ["granted", "granted", "status", "granted"]
        assert json.loads(found[1].body)["waited"] == pytest.approx(60, abs=1)
        assert server.asked == ["/v1/acquire", "/healthz", "/v1/acquire"], (
            "what is behind is answered there too"
        )
        connection.send(TAKE)
        assert len(connection.answers().found) == 5, "and when all is answered, it is hot again"

    serve(test)


def test_hot_calls_that_ask_the_engine_keep_their_order(monkeypatch):
    async def test(server):
        later = Later(server, monkeypatch)
        connection = server.connect()
        connection.send(TAKE + HEALTH + TAKE + LIST + TAKE)
        await asyncio.sleep(1)
        assert len(later.waiting) == 2, "both hot ones are decided at the same time"
        assert connection.wire.written == []
        later.answer(1)
        await asyncio.sleep(1)
        assert connection.wire.written == [], "the second waits for the first"
        assert server.asked == []
        later.answer(0)
        await asyncio.sleep(1)
        assert kinds(connection.answers().found) == ["granted", "status", "granted", "limits"]
        assert server.asked == ["/v1/limits", "/v1/acquire"], (
            "the last one came behind a call of the application"
        )
        later.answer(2)
        await asyncio.sleep(1)
        assert kinds(connection.answers().found)[4:] == ["granted"]
        assert connection.wire.reading

    serve(test)


def test_a_request_may_come_in_any_two_pieces():
    """Split at every byte: head, body and the border between two requests."""

    async def test(server):
        data = TAKE + HEALTH + acquire(b'{"limit": "one"}')
        for cut in range(len(data) + 1):
            connection = server.connect()
            connection.send(data[:cut])
            await asyncio.sleep(0.001)
            connection.send(data[cut:])
            assert kinds(connection.answers().found)[:2] == ["granted", "status"], cut
            assert len(connection.answers().found) == 3, cut
            assert not connection.wire.closed
            connection.leave()
            await asyncio.sleep(0)
        connection = server.connect()
        for index in range(len(data)):
            connection.send(data[index : index + 1])
        assert len(connection.answers().found) == 3
        assert server.asked == []

    serve(test)


@pytest.mark.parametrize(
    ("version", "connection_header", "stays"),
    [
        ("1.1", None, True),
        ("1.1", "close", False),
        ("1.1", "Keep-Alive", True),
        ("1.0", None, False),
        ("1.0", "keep-alive", False),
    ],
)
def test_a_connection_stays_open_as_asked(version, connection_header, stays):
    async def test(server):
        lines = PLAIN if connection_header is None else (*PLAIN, ("Connection", connection_header))
        data = request("POST", "/v1/acquire", b'{"limit": "window"}', headers=lines, version=version)
        connection = server.connect()
        connection.send(data + TAKE)
        await asyncio.sleep(1)
        found = connection.answers().found
        assert len(found) == (2 if stays else 1), "what comes after a close is not answered"
        assert dict(found[0].headers).get("connection") == (None if stays else "close")
        assert connection.wire.closed == (not stays)
        assert server.service.limits.find("window").granted == len(found)

    serve(test)


def test_chunks_continue_and_head_are_answered_by_the_application():
    async def test(server):
        chunked = request("POST", "/v1/acquire", b'{"limit": "window"}', headers=PLAIN, chunked=True)
        connection = server.connect()
        connection.send(chunked + TAKE)
        assert kinds(await connection.after(2)) == ["granted", "granted"]
        patient = request(
            "POST", "/v1/acquire", b'{"limit": "window"}', headers=(*PLAIN, ("Expect", "100-continue"))
        )
        head, _, body = patient.partition(b"\r\n\r\n")
        connection.send(head + b"\r\n\r\n")
        await asyncio.sleep(1)
        assert connection.answers().interim == [100], "before its body has come"
        connection.send(body)
        assert len(await connection.after(3)) == 3
        other = server.connect()
        other.send(request("HEAD", "/healthz", headers=(("Host", "localhost"),)))
        await asyncio.sleep(1)
        assert b"".join(other.wire.written).endswith(b"\r\n\r\n"), "no body"

    serve(test)


def test_a_client_that_does_not_read_is_not_read_from():
    async def test(server):
        connection = server.connect()
        connection.send(TAKE)
        connection.protocol.pause_writing()  # as a transport says when its buffer is full
        assert not connection.wire.reading
        connection.protocol.resume_writing()
        assert connection.wire.reading
        connection.send(TAKE)
        assert len(connection.answers().found) == 2

    serve(test)


def test_so_many_hot_calls_may_be_pipelined(monkeypatch):
    async def test(server):
        later = Later(server, monkeypatch)
        connection = server.connect()
        connection.send(TAKE * READ_ON)
        assert connection.wire.reading
        connection.send(TAKE)
        assert not connection.wire.reading, "it is read from again when it has answers"
        await asyncio.sleep(1)
        for index in range(READ_ON + 1):
            later.answer(index)
        assert len(await connection.after(READ_ON + 1)) == READ_ON + 1
        assert connection.wire.reading
        connection.send(TAKE * (MAX_PIPELINED + 1))
        await asyncio.sleep(1)
        assert connection.wire.closed, "more come at once than are kept"
        for future in later.waiting:
            if not future.done():
                future.set_result(None)
        await asyncio.sleep(1)

    serve(test)


def test_a_client_may_leave_in_the_middle(monkeypatch):
    """In the middle of a head, of a body, and while its call is decided: others go on, and nothing is left over."""

    async def test(server):
        for cut in (10, len(TAKE) - 3):
            connection = server.connect()
            connection.send(TAKE[:cut])
            connection.leave()
        assert server.service.limits.find("window").granted == 0
        later = Later(server, monkeypatch)
        connection = server.connect()
        connection.send(TAKE + LIST)
        await asyncio.sleep(1)
        connection.leave()
        later.answer(0)
        await asyncio.sleep(1)
        assert connection.wire.written == []
        assert server.service.limits.find("window").granted == 1, "a command that was begun is carried out"
        assert server.asked == [], "one that was not begun is not"
        assert server.state.tasks == set()
        assert server.state.connections == set()

    serve(test)


def test_a_body_that_does_not_come_is_answered_as_by_the_application():
    async def test(server):
        connection = server.connect()
        connection.send(TAKE[:-5])
        await asyncio.sleep(BODY_SECONDS - 1)
        assert connection.wire.written == []
        await asyncio.sleep(2)
        (said,) = connection.answers().found
        assert (said.status, json.loads(said.body)["type"]) == (408, "urn:headway:slow-body")
        assert [value for name, value in said.headers if name == "connection"] == ["close"]
        assert connection.wire.closed
        assert b'headway_requests_total{path="/v1/acquire",status="408"} 1.0' in server.service.metrics.text(
            server.service.limits, server.service.permits
        )

    serve(test)


def test_a_body_that_is_too_large_is_answered_by_the_application():
    async def test(server):
        connection = server.connect()
        large = acquire(b'{"limit": "%b"}' % (b"x" * 1300))
        connection.send(large[:1250])
        connection.send(large[1250:])
        (said,) = await connection.after(1)
        assert (said.status, json.loads(said.body)["type"]) == (413, "urn:headway:body-too-large")
        connection.send(TAKE)
        assert len(await connection.after(2)) == 2

    serve(test, LIMITS + "[server]\nmax_body = 1024\n")


def test_an_idle_connection_ends():
    async def test(server):
        used, idle = server.connect(), server.connect()
        idle.send(TAKE)
        for _ in range(5):
            used.send(TAKE)
            await asyncio.sleep(KEEP_ALIVE * 0.6)
            used.send(LIST)  # what the application answers counts as use too
            await asyncio.sleep(KEEP_ALIVE * 0.6)
        assert idle.wire.closed
        assert not used.wire.closed
        await asyncio.sleep(2 * KEEP_ALIVE)
        assert used.wire.closed

    serve(test)


def test_a_server_that_ends_answers_what_was_begun(monkeypatch):
    async def test(server):
        later = Later(server, monkeypatch)
        busy, idle = server.connect(), server.connect()
        busy.send(TAKE)
        for connection in (busy, idle):
            connection.protocol.shutdown()
        assert idle.wire.closed
        assert not busy.wire.closed
        busy.send(TAKE)
        await asyncio.sleep(1)
        assert len(later.waiting) == 1, "a request that comes now is not begun"
        later.answer(0)
        (said,) = await busy.after(1)
        assert said.status == 200
        assert busy.wire.closed

    serve(test)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_fault_is_answered_and_logged(monkeypatch, caplog, at_once):
    async def test(server):
        def fault(*_):
            raise RuntimeError("broken")

        async def later_fault(*_):
            raise RuntimeError("broken")

        server.hot.quick = None
        if at_once:
            monkeypatch.setattr(server.service.decider, "_at_once", fault)
        else:
            monkeypatch.setattr(server.service.decider, "_at_once", lambda take: None)
            monkeypatch.setattr(server.service.decider, "_by_and_by", later_fault)
        connection = server.connect()
        connection.send(TAKE + HEALTH)
        found = await connection.after(2)
        assert [said.status for said in found] == [500, 200]
        assert json.loads(found[0].body)["type"] == "urn:headway:failed"

    with caplog.at_level(logging.ERROR, "headway"):
        serve(test)
    assert "broken" in caplog.text


def test_no_http_behind_hot_calls_is_a_400_behind_their_answers():
    async def test(server):
        connection = server.connect()
        connection.send(TAKE + b"\x00\x01 no http\r\n\r\n")
        await asyncio.sleep(1)
        assert [said.status for said in connection.answers().found] == [200, 400]
        assert connection.wire.closed

    serve(test)


def test_only_so_many_hosts_are_remembered():
    async def test(server):
        hot = server.hot
        for number in range(3 * MOST_HOSTS):
            connection = server.connect()
            connection.send(request("GET", "/healthz", headers=(("Host", f"localhost:{number}"),)))
            assert connection.answers().found[0].status == 200
            connection.leave()
            assert len(hot._hosts) <= MOST_HOSTS
        assert server.asked == []

    serve(test)


# -- heads that are known --------------------------------------------------------------------------------


class Unused:
    """In the place of a parser that must not be asked."""

    def feed_data(self, data):
        raise AssertionError(data)


def granted(server, name="window"):
    return server.service.limits.find(name).granted


def test_a_head_that_was_read_before_is_not_parsed_again():
    async def test(server):
        first = server.connect()
        first.send(acquire(b'{"limit": "window", "key": "a"}'))
        other = server.connect()
        other.protocol.parser = Unused()
        for key in "bcd":
            other.send(acquire(b'{"limit": "window", "key": "%b"}' % key.encode()))
        other.send(acquire(b'{"limit": "window", "key": "b"}') * 3)
        found = other.answers().found
        assert [json.loads(said.body)["status"]["remaining"] for said in found] == [999] * 3 + [998, 997, 996]
        with pytest.raises(AssertionError, match="limit"):
            other.send(acquire(b'{"limit": "window"}'))  # another length is another head

    serve(test)


def test_a_known_head_is_known_only_where_a_request_begins():
    """Within a body, behind an empty line, or in pieces, the parser decides, and what it says is answered."""

    async def test(server):
        body = b'{"limit": "window"}'
        known = acquire(body)
        head = known[: -len(body)]
        server.connect().send(known)
        assert list(server.hot.heads) == [head]
        outer = acquire(b'{"limit": "window", "key": "' + b"x" * len(known) + b'"}')
        smuggled = outer.replace(b"x" * len(known), known)
        connection = server.connect()
        connection.send(smuggled)  # no JSON: it has line ends within a string
        (said,) = await connection.after(1)
        assert json.loads(said.body)["type"] == "urn:headway:bad-json"
        assert granted(server) == 1, "what stands in a body is no request"
        for pieces in ([b"\r\n", known], [b"\r\n" + known], [head, body], [known + head, body]):
            connection = server.connect()
            for piece in pieces:
                connection.send(piece)
            wanted = 2 if pieces[0].startswith(known) else 1
            assert kinds(await connection.after(wanted)) == ["granted"] * wanted, pieces
        before = granted(server)
        connection = server.connect()
        connection.send(known + b"\x00 no http\r\n\r\n")
        await asyncio.sleep(1)
        assert [said.status for said in connection.answers().found] == [200, 400]
        assert granted(server) == before + 1

    serve(test)


def test_a_known_head_behind_a_call_of_the_application_keeps_its_place():
    async def test(server):
        server.connect().send(TAKE)
        connection = server.connect()
        connection.send(acquire(b'{"limit": "one"}') + WAIT)
        await asyncio.sleep(1)
        connection.send(TAKE)
        await asyncio.sleep(1)
        assert len(connection.answers().found) == 1
        await asyncio.sleep(60)
        assert kinds(connection.answers().found) == ["granted"] * 3

    serve(test)


def test_heads_that_are_remembered_are_bounded_and_plain():
    async def test(server):
        heads = server.hot.heads
        body = b'{"limit": "window"}'
        for lines, version in (
            ((*PLAIN, ("Connection", "close")), "1.1"),
            (PLAIN, "1.0"),
            ((*PLAIN, ("X-Long", "x" * LONGEST_HEAD)), "1.1"),
            ((*PLAIN, ("Origin", "http://localhost")), "1.1"),
        ):
            connection = server.connect()
            connection.send(request("POST", "/v1/acquire", body, headers=lines, version=version))
            assert (await connection.after(1))[0].status == 200
            assert heads == {}
        for number in range(MOST_HEADS + 10):
            connection = server.connect()
            connection.send(request("POST", "/v1/acquire", body, headers=(*PLAIN, ("X-Number", str(number)))))
            assert connection.wire.written
            connection.leave()
        assert 0 < len(heads) <= MOST_HEADS

    serve(test)


def test_tokens_are_checked_for_known_heads_too():
    text = LIMITS + '[tokens.user]\ntoken = "a-token-that-is-long-enough"\nrole = "use"\n'

    async def test(server):
        lines = (*PLAIN, ("Authorization", "Bearer a-token-that-is-long-enough"))
        data = request("POST", "/v1/acquire", b'{"limit": "window"}', headers=lines)
        connection = server.connect()
        connection.send(data * 2)
        connection.send(data)
        assert [said.status for said in connection.answers().found] == [200] * 3
        server.service.tokens.replace({"other": TokenConfig("other", b"x" * 32, "use")})
        connection.send(data)
        assert [said.status for said in await connection.after(4)] == [200] * 3 + [401]

    serve(test, text)
