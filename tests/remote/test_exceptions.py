"""How a call ends its permit, with the exceptions that HTTP libraries really raise.

A server on the loopback interface misbehaves as servers do; each library meets it, and a refused port, and a name that
does not exist. Nothing is mocked: what is tested is how the libraries wrap what the operating system says.
"""

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import struct
import threading
import urllib.error
import urllib.request

import aiohttp
import httpx
import pytest
import requests

from headway import Limiter
from headway.outcome import Outcome, outcome_of

PATIENCE = 0.2  # seconds, for the call that gets no answer

ANSWERS = {
    "/ok": ("200 OK", '{"a": 1}'),
    "/404": ("404 Not Found", "{}"),
    "/500": ("500 Internal Server Error", "{}"),
    "/not-json": ("200 OK", '{"a": '),
}


class Misbehaving:
    """Reads a request, then does what its path says: an answer, `/close`, `/reset`, `/cut` or `/silent`."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._silent = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            connection, _ = self._listening.accept()
            with connection.makefile("rb") as lines:
                line = lines.readline()
                if not line:
                    connection.close()
                    return
                while lines.readline() not in (b"\r\n", b""):
                    pass
            self._answer(connection, line.split()[1].decode())

    def _answer(self, connection, path):
        if path == "/silent":
            self._silent.append(connection)
            return
        if path == "/reset":  # closing with nothing to linger for sends RST instead of FIN
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif path == "/cut":
            connection.sendall(b"HTTP/1.1 20")
        elif path != "/close":
            status, body = ANSWERS[path]
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        connection.close()

    def stop(self):
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        for connection in (self._listening, *self._silent):
            connection.close()


@pytest.fixture(scope="module")
def server():
    server = Misbehaving()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def refused_port():
    """A port that is taken and does not listen, so that no other process can listen there meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def with_urllib(url):
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        raise


def with_http_client(url):
    host, _, path = url.removeprefix("http://").partition("/")
    with contextlib.closing(http.client.HTTPConnection(host, timeout=PATIENCE)) as connection:
        connection.request("GET", f"/{path}")
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200
        json.loads(body)


def with_requests(url):
    with requests.Session() as session:
        answer = session.get(url, timeout=PATIENCE)
        answer.raise_for_status()
        answer.json()


def with_httpx(url):
    with httpx.Client(timeout=PATIENCE) as client:
        client.get(url).raise_for_status().json()


def with_async_httpx(url):
    async def call():
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            (await client.get(url)).raise_for_status().json()

    asyncio.run(call())


def with_aiohttp(url):
    async def call():
        timeout = aiohttp.ClientTimeout(total=PATIENCE if url.endswith("/silent") else 10)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            answer.raise_for_status()
            await answer.json()

    asyncio.run(call())


CLIENTS = [with_urllib, with_http_client, with_requests, with_httpx, with_async_httpx, with_aiohttp]


def end_of(client, url):
    """How the permit around this call ended, and what the call raised."""
    limiter = Limiter("100/s", remote=True)
    permit = limiter.acquire()
    try:
        with permit:
            client(url)
    except Exception as error:  # noqa: BLE001 - what it is, is the question
        return permit.ended, error
    return permit.ended, None


@pytest.fixture(params=CLIENTS, ids=lambda client: client.__name__.removeprefix("with_"))
def client(request):
    return request.param


def test_an_answer_completes(client, server):
    assert end_of(client, f"http://127.0.0.1:{server.port}/ok") == ("complete", None)


@pytest.mark.parametrize("path", ["/404", "/500", "/not-json"])
def test_an_answer_that_displeases_completes(client, server, path):
    ended, error = end_of(client, f"http://127.0.0.1:{server.port}{path}")
    assert (ended, error is not None) == ("complete", True), repr(error)


def test_a_refused_connection_cancels(client, refused_port):
    ended, error = end_of(client, f"http://127.0.0.1:{refused_port}/ok")
    assert ended == "cancel", repr(error)


def test_an_unknown_name_cancels(client):
    ended, error = end_of(client, "http://no-such-host.invalid/ok")
    assert ended == "cancel", repr(error)


@pytest.mark.parametrize("path", ["/close", "/reset", "/cut", "/silent"])
def test_a_lost_answer_abandons(client, server, path):
    ended, error = end_of(client, f"http://127.0.0.1:{server.port}{path}")
    assert (ended, error is not None) == ("abandon", True), repr(error)


def caused(error, cause):
    error.__cause__ = cause
    return error


def many(*attempts):
    """What anyio raises for a name with several addresses, and httpx around it."""
    group = ExceptionGroup("multiple connection attempts failed", attempts)
    return caused(httpx.ConnectError("failed"), caused(OSError("All connection attempts failed"), group))


def test_of_several_addresses_all_must_have_refused():
    assert outcome_of(many(ConnectionRefusedError(), ConnectionRefusedError())) == Outcome.CANCEL
    assert outcome_of(many(ConnectionRefusedError(), TimeoutError())) == Outcome.ABANDON


def test_a_group_of_several_calls_proves_nothing():
    """One task was refused; what the others did is not in the group."""
    assert outcome_of(ExceptionGroup("tasks", [ConnectionRefusedError()])) == Outcome.ABANDON


def test_an_error_during_the_handling_of_a_refused_one_proves_nothing():
    error = ConnectionResetError()
    error.__context__ = ConnectionRefusedError()
    assert outcome_of(error) == Outcome.ABANDON


def test_a_status_alone_is_not_an_answer():
    """A program that exits with 130 was interrupted, and aiohttp invents a status for what it cannot read."""
    assert outcome_of(SystemExit(130)) == Outcome.ABANDON
    unreadable = aiohttp.ClientResponseError(None, (), status=400, headers=None)  # type: ignore[arg-type]
    assert outcome_of(unreadable) == Outcome.ABANDON


def test_a_refused_certificate_is_no_answer():
    assert outcome_of(ssl.SSLCertVerificationError("self-signed certificate")) == Outcome.ABANDON


def test_a_resolver_of_its_own():
    """aiodns reports an OSError that is no gaierror."""

    class Resolver(aiohttp.abc.AbstractResolver):
        async def resolve(self, host, port=0, family=socket.AF_INET):
            raise OSError(None, "Domain name not found")

        async def close(self):
            pass

    async def call(url):
        connector = aiohttp.TCPConnector(resolver=Resolver())
        async with aiohttp.ClientSession(connector=connector) as session, session.get(url):
            pass

    ended, error = end_of(lambda url: asyncio.run(call(url)), "http://no-such-host.invalid/")
    assert ended == "cancel", repr(error)
