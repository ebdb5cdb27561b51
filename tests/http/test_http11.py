"""The HTTP/1.1 that is read: lengths, chunks, and answers that are none; byte by byte, as a slow network has them."""

import socket
import threading
from contextlib import contextmanager

import pytest

from headway.engines.http.address import read_address
from headway.engines.http.http11 import BadAnswer, Connection
from waiting import NEVER


@contextmanager
def answering(raw, step=None):
    """A connection to a server that answers whatever comes with these bytes, and closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard = []

    def serve():
        peer, _ = listener.accept()
        with peer:
            heard.append(peer.recv(65536))
            for at in range(0, len(raw), step or len(raw) or 1):
                peer.sendall(raw[at : at + (step or len(raw))])

    thread = threading.Thread(target=serve)
    thread.start()
    connection = Connection(read_address("http://token@localhost"), listener.getsockname(), NEVER)
    try:
        yield connection, heard
    finally:
        connection.close()
        thread.join(NEVER)
        listener.close()


@pytest.mark.parametrize("step", [None, 1, 3])
@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello"),
        (b"HTTP/1.1 410 Gone\r\ncontent-length:0\r\n\r\n", 410, b""),
        (
            b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n1\r\n!\r\n0\r\n\r\n",
            200,
            b"hello!",
        ),
    ],
)
def test_an_answer_is_read_whole(raw, status, body, step):
    with answering(raw, step) as (connection, heard):
        assert connection.post("/v1/engine", b"{}", NEVER) == (status, body)
        head, _, sent = heard[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/engine HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"Authorization: Bearer token" in head
        assert sent == b"{}"


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_answer_is_refused(raw):
    with answering(raw) as (connection, _), pytest.raises(BadAnswer):
        connection.post("/", b"", NEVER)


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal"]
)
def test_an_answer_that_ends_early_is_noticed(raw):
    with answering(raw) as (connection, _), pytest.raises((EOFError, ConnectionError)):
        connection.post("/", b"", NEVER)


def test_an_answer_that_does_not_end_is_read_as_it_comes():
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    with answering(raw, 4) as (connection, _):
        assert list(connection.stream("/events", NEVER)) == [b"one", b"two"]
    with (
        answering(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n") as (connection, _),
        pytest.raises(BadAnswer),
    ):
        connection.stream("/events", NEVER)
