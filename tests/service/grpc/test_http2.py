"""One HTTP/2 connection on libnghttp2, without a socket; the peer is the library h2."""

import contextlib
import gc
import os
import struct
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

http2 = pytest.importorskip(
    "headway.service.grpc.http2", reason="needs the compiled form: install a C compiler"
)
if not http2.available():
    pytest.skip("needs libnghttp2: apt-get install libnghttp2-14", allow_module_level=True)

GRPC = [(":scheme", "http"), (":authority", "a"), ("content-type", "application/grpc"), ("te", "trailers")]
UNIMPLEMENTED, INTERNAL, RESOURCE_EXHAUSTED = "12", "13", "8"


def framed(message):
    return struct.pack(">BI", 0, len(message)) + message


HELLO = framed(b"hello")


class Peer:
    """A client, and the connection that it talks to."""

    def __init__(self, **options):
        self.server = http2.Connection(**options)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.client.initiate_connection()
        self.events = []
        self.requests = []

    def call(self, body=HELLO, path="/t.T/Echo", headers=(), method="POST", own=GRPC, end=True):
        stream = self.client.get_next_available_stream_id()
        fields = [(":method", method), (":path", path), *own, *headers]
        self.client.send_headers(stream, fields, end_stream=body is None and end)
        if body is not None:
            self.client.send_data(stream, body, end_stream=end)
        self.exchange()
        return stream

    def exchange(self, step=None):
        """Until neither side has anything to say; what the client says comes in pieces of `step` bytes."""
        while True:
            said = self.client.data_to_send()
            pieces = [said] if step is None else [said[i : i + step] for i in range(0, len(said), step)]
            for piece in pieces:
                self.requests += self.server.receive(piece)
            answer = self.server.take()
            if not said and not answer:
                return
            for event in self.client.receive_data(answer):
                self.events.append(event)
                if isinstance(event, h2.events.DataReceived):
                    self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def answered(self, stream):
        """Headers, body and trailers of an answer; whether it has ended."""
        self.exchange()
        mine = [event for event in self.events if getattr(event, "stream_id", None) == stream]
        headers: list[Any] = [dict(e.headers) for e in mine if isinstance(e, h2.events.ResponseReceived)]
        body = b"".join(e.data for e in mine if isinstance(e, h2.events.DataReceived))
        trailers: list[Any] = [dict(e.headers) for e in mine if isinstance(e, h2.events.TrailersReceived)]
        ended = any(isinstance(e, h2.events.StreamEnded) for e in mine)
        return (headers or [None])[0], body, (trailers or [None])[0], ended


def test_a_request_comes_whole_and_its_answer_ends_with_status_0():
    peer = Peer()
    stream = peer.call(headers=[("grpc-timeout", "20m")])
    assert peer.requests == [(stream, b"/t.T/Echo", b"hello", 20_000_000)]
    assert peer.server.answer(stream, b"hi")
    headers, body, trailers, ended = peer.answered(stream)
    assert headers == {":status": "200", "content-type": "application/grpc"}
    assert (body, trailers, ended) == (framed(b"hi"), {"grpc-status": "0"}, True)


def test_an_answer_is_given_once():
    peer = Peer()
    stream = peer.call()
    assert peer.server.answer(stream, b"hi")
    assert not peer.server.answer(stream, b"again")
    assert not peer.server.fail(stream, 13, "again")
    assert peer.answered(stream)[1] == framed(b"hi")
    assert not peer.server.answer(stream, b"late")
    assert not peer.server.answer(99, b"never asked")


@pytest.mark.parametrize("step", [1, 2, 7])
def test_bytes_may_be_cut_anywhere(step):
    peer = Peer()
    stream = peer.client.get_next_available_stream_id()
    peer.client.send_headers(stream, [(":method", "POST"), (":path", "/t.T/Echo"), *GRPC])
    peer.client.send_data(stream, framed(b"x" * 50), end_stream=True)
    peer.exchange(step)
    assert [request[2] for request in peer.requests] == [b"x" * 50]
    peer.server.answer(stream, b"y" * 50)
    assert peer.answered(stream)[1] == framed(b"y" * 50)


@pytest.mark.parametrize("size", [0, 1, 16379, 16380, 65535, 65536, 300_000])
def test_messages_of_any_length_pass_both_ways(size):
    peer = Peer()
    stream = peer.call(body=None, end=False)
    data, message = framed(os.urandom(size)), os.urandom(size)
    while data:
        room = min(peer.client.local_flow_control_window(stream), 16384, len(data))
        peer.client.send_data(stream, data[:room], end_stream=room == len(data))
        data = data[room:]
        peer.exchange()
    assert len(peer.requests[0][2]) == size
    peer.server.answer(stream, message)
    _, body, trailers, ended = peer.answered(stream)
    assert body == framed(message)
    assert trailers == {"grpc-status": "0"}
    assert ended


def test_many_streams_are_answered_in_one_piece():
    peer = Peer()
    streams = [peer.call() for _ in range(50)]
    for stream in streams:
        peer.server.answer(stream, b"%d" % stream)
    assert all(peer.answered(stream)[1] == framed(b"%d" % stream) for stream in streams)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (None, INTERNAL, "the request has no message"),
        (b"\0\0", INTERNAL, "the request has no message"),
        (framed(b"abc")[:-1], INTERNAL, "a request has exactly one message"),
        (framed(b"abc") * 2, INTERNAL, "a request has exactly one message"),
        (b"\1" + framed(b"abc")[1:], UNIMPLEMENTED, "compressed messages are not read"),
        (b"\0\xff\xff\xff\xff", INTERNAL, "a request has exactly one message"),
    ],
)
def test_a_body_that_is_no_message_is_refused(body, status, message):
    peer = Peer()
    headers, data, trailers, ended = peer.answered(peer.call(body))
    assert peer.requests == []
    assert (headers["grpc-status"], headers["grpc-message"]) == (status, message)
    assert (data, trailers, ended) == (b"", None, True)


def test_a_message_above_the_bound_is_refused_before_it_is_whole():
    peer = Peer(max_message=1000)
    stream = peer.call(framed(b"x" * 1001), end=False)
    headers, *_ = peer.answered(stream)
    assert headers["grpc-status"] == RESOURCE_EXHAUSTED
    assert headers["grpc-message"] == "a message has at most 1000 bytes"
    resets = [event for event in peer.events if isinstance(event, h2.events.StreamReset)]
    assert [(event.stream_id, event.error_code) for event in resets] == [(stream, 0)]
    other = peer.call(framed(b"x" * 1000))
    assert peer.requests[-1][0] == other, "the connection goes on"


@pytest.mark.parametrize(
    ("method", "own", "status"),
    [
        ("GET", GRPC, "405"),
        ("HEAD", GRPC, "405"),
        ("POST", [(":scheme", "http"), (":authority", "a"), ("content-type", "application/json")], "415"),
        ("POST", [(":scheme", "http"), (":authority", "a"), ("content-type", "application/grpcx")], "415"),
    ],
)
def test_what_is_no_grpc_is_told_what_this_port_is(method, own, status):
    peer = Peer()
    headers, body, trailers, ended = peer.answered(
        peer.call(None if method != "POST" else b"{}", method=method, own=own)
    )
    assert headers[":status"] == status
    assert (b"gRPC" in body) == (method != "HEAD")
    assert ended
    assert trailers is None
    assert peer.requests == []


def test_a_failure_has_its_code_and_an_escaped_reason():
    peer = Peer()
    stream = peer.call()
    assert peer.server.fail(stream, 3, "50 % naïve\nand more")
    headers, *_ = peer.answered(stream)
    assert (headers["grpc-status"], headers["grpc-message"]) == ("3", "50 %25 na%C3%AFve%0Aand more")


def test_a_stream_that_the_peer_resets_is_told_to_the_program():
    peer = Peer()
    stream = peer.call()
    peer.client.reset_stream(stream, 8)
    peer.exchange()
    assert list(peer.server.take_gone()) == [stream]
    assert list(peer.server.take_gone()) == []
    assert not peer.server.answer(stream, b"too late")


def test_a_peer_that_resets_without_end_is_ended():
    peer = Peer()
    with contextlib.suppress(h2.exceptions.ProtocolError):  # the connection is closed
        for _ in range(2 * http2.PATIENCE):
            peer.client.reset_stream(peer.call(), 8)
            peer.exchange()
    ends = [event for event in peer.events if isinstance(event, h2.events.ConnectionTerminated)]
    assert [event.error_code for event in ends] == [11]
    assert peer.server.ended


def test_headers_above_the_bound_reset_the_stream():
    peer = Peer(max_headers=2000)
    stream = peer.call(headers=[(f"x-{i}", "y" * 100) for i in range(20)])
    assert peer.requests == []
    assert [e.stream_id for e in peer.events if isinstance(e, h2.events.StreamReset)] == [stream]
    peer.call()
    assert len(peer.requests) == 1


def test_what_is_no_http2_raises_and_says_so():
    server = http2.Connection()
    with pytest.raises(ValueError, match="client magic"):
        server.receive(b"GET / HTTP/1.1\r\n\r\n" * 2)


def test_the_end_is_announced_and_what_is_open_is_answered():
    peer = Peer()
    stream = peer.call()
    peer.server.announce_end()
    peer.exchange()
    peer.server.close()
    assert not peer.server.ended
    peer.server.answer(stream, b"last")
    # h2 reads nothing after GOAWAY, though the protocol says that open streams go on.
    assert framed(b"last") in peer.server.take()
    assert peer.server.ended


def test_whether_the_rest_of_a_request_is_to_come():
    peer = Peer()
    assert peer.server.incomplete, "nothing came yet"
    peer.exchange()
    assert not peer.server.incomplete
    stream = peer.call(framed(b"hello")[:3], end=False)
    assert peer.server.incomplete
    peer.client.send_data(stream, framed(b"hello")[3:], end_stream=True)
    peer.exchange()
    assert not peer.server.incomplete
    assert [request[2] for request in peer.requests] == [b"hello"]
    other = peer.call(b"", end=False)
    assert peer.server.incomplete
    peer.client.reset_stream(other)
    peer.exchange()
    assert not peer.server.incomplete


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=300)
def test_garbage_is_an_error_and_never_more(data, begun):
    server = http2.Connection()
    if begun:
        client = h2.connection.H2Connection()
        client.initiate_connection()
        server.receive(client.data_to_send())
    with contextlib.suppress(ValueError):
        server.receive(data)
    server.take()


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 255)), max_size=8), st.integers(0, 9))
@settings(max_examples=300)
def test_a_request_with_wrong_bytes_harms_nothing(changes, extra):
    """A whole session of a client in which some bytes are others."""
    peer = Peer()
    stream = peer.client.get_next_available_stream_id()
    peer.client.send_headers(stream, [(":method", "POST"), (":path", "/t.T/Echo"), *GRPC])
    peer.client.send_data(stream, framed(b"x" * extra), end_stream=True)
    said = bytearray(peer.client.data_to_send())
    for place, byte in changes:
        said[len(said) * place // 21] = byte
    with contextlib.suppress(ValueError):
        for id, *_ in peer.server.receive(bytes(said)):
            peer.server.answer(id, b"answer")
    peer.server.take()


def test_connections_leave_nothing_behind():
    resource = pytest.importorskip("resource")

    def use():
        for _ in range(300):
            peer = http2.Connection()
            client = h2.connection.H2Connection()
            client.initiate_connection()
            client.send_headers(1, [(":method", "POST"), (":path", "/t.T/Echo"), *GRPC])
            client.send_data(1, framed(b"x" * 30_000)[:16_000])
            peer.receive(client.data_to_send())
            peer.take()

    use()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(5):
        use()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300 * 16, f"{grown} KiB: less than one round of messages"
