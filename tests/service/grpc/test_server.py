"""The gRPC server on real sockets; the client is grpcio."""

import asyncio
import concurrent.futures
import contextlib
import logging
import socket
import threading

import pytest

from waiting import NEVER

grpc = pytest.importorskip("grpc")
http2 = pytest.importorskip(
    "headway.service.grpc.http2", reason="needs the compiled form: install a C compiler"
)
if not http2.available():
    pytest.skip("needs libnghttp2: apt-get install libnghttp2-14", allow_module_level=True)

from headway.service.grpc.server import GrpcServer  # noqa: E402
from headway.service.grpc.status import GrpcError, GrpcStatus  # noqa: E402

pytestmark = pytest.mark.realtime


class Running:
    """A server on an event loop in a thread of its own."""

    def __init__(self, handlers, **options):
        self.loop = asyncio.new_event_loop()
        self.server = GrpcServer(handlers, **options)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.do(self.server.start("127.0.0.1", 0))
        self.port = self.server.port

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(NEVER)

    def end(self):
        self.do(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(NEVER)


class Handlers:
    def __init__(self):
        self.may_end = threading.Event()
        self.asked = threading.Event()
        self.cancelled = threading.Event()

    async def wait(self, message):
        self.asked.set()
        try:
            while not self.may_end.is_set():  # noqa: ASYNC110 - it is set by another thread
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return message

    async def later(self, message):
        await asyncio.sleep(0)
        return message[::-1]

    def refuse(self, message):
        raise GrpcError(GrpcStatus.INVALID_ARGUMENT, "the domain is empty")

    async def refuse_later(self, message):
        raise GrpcError(GrpcStatus.INVALID_ARGUMENT, "the domain is empty")

    def fail(self, message):
        raise ZeroDivisionError("a secret")

    @property
    def by_path(self):
        names = ("wait", "later", "refuse", "refuse_later", "fail")
        return {f"/t.T/{name}": getattr(self, name) for name in names} | {
            "/t.T/echo": lambda message: message
        }


@pytest.fixture
def handlers():
    return Handlers()


@pytest.fixture
def running(handlers):
    running = Running(handlers.by_path)
    yield running
    handlers.may_end.set()
    running.end()


@pytest.fixture
def call(running):
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:

        def call(name, message=b"", timeout=NEVER, future=False):
            method = channel.unary_unary(f"/t.T/{name}")
            return (method.future if future else method)(message, timeout=timeout)

        yield call


def test_an_answer_at_once_and_one_of_a_task(call):
    assert call("echo", b"hello") == b"hello"
    assert call("later", b"hello") == b"olleh"


@pytest.mark.parametrize(
    ("name", "code", "details"),
    [
        ("refuse", "INVALID_ARGUMENT", "the domain is empty"),
        ("refuse_later", "INVALID_ARGUMENT", "the domain is empty"),
        ("fail", "INTERNAL", "the call failed; the server's log says why"),
        ("other", "UNIMPLEMENTED", "there is no method /t.T/other"),
    ],
)
def test_errors_reach_the_client(call, caplog, name, code, details):
    with pytest.raises(grpc.RpcError) as caught:
        call(name)
    assert (caught.value.code().name, caught.value.details()) == (code, details)
    assert ("a secret" in caplog.text) == (name == "fail")
    assert call("echo", b"the connection goes on") == b"the connection goes on"


def test_a_call_that_the_client_gives_up_is_cancelled(call, handlers):
    waiting = call("wait", future=True)
    assert handlers.asked.wait(NEVER)
    waiting.cancel()
    assert handlers.cancelled.wait(NEVER)
    assert call("echo", b"x") == b"x"


def test_a_deadline_ends_the_call(call, handlers):
    while not handlers.asked.is_set():  # on a busy machine the time is over before the call has left
        with pytest.raises(grpc.RpcError) as caught:
            call("wait", timeout=0.05)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert handlers.cancelled.wait(NEVER)


def test_many_calls_of_many_threads(call):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        messages = [b"%d" % i for i in range(500)]
        assert list(pool.map(lambda message: call("echo", message), messages)) == messages


def test_a_stop_answers_what_was_asked(handlers):
    running = Running(handlers.by_path)
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        waiting = channel.unary_unary("/t.T/wait").future(b"last")
        assert handlers.asked.wait(NEVER)
        stopping = asyncio.run_coroutine_threadsafe(running.server.stop(), running.loop)
        handlers.may_end.set()
        assert waiting.result(NEVER) == b"last"
        stopping.result(NEVER)
    assert not running.server.connections
    running.end()


def test_a_peer_that_says_nothing_is_closed(handlers):
    running = Running(handlers.by_path, patience=0.1)
    with socket.create_connection(("127.0.0.1", running.port)) as silent:
        silent.settimeout(NEVER)
        with contextlib.suppress(ConnectionError):
            while silent.recv(4096):
                pass
    running.end()


def test_an_idle_connection_between_calls_is_kept(handlers):
    running = Running(handlers.by_path, patience=0.1)
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        echo = channel.unary_unary("/t.T/echo")
        assert echo(b"x", timeout=NEVER) == b"x"
        (before,) = running.server.connections
        threading.Event().wait(0.3)
        assert echo(b"x", timeout=NEVER) == b"x"
        assert running.server.connections == {before}
    running.end()


def test_what_is_no_http2_ends_the_connection_alone(running, call):
    assert call("echo", b"x") == b"x"
    with socket.create_connection(("127.0.0.1", running.port)) as other:
        other.settimeout(NEVER)
        other.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while other.recv(4096):
                pass
    assert call("echo", b"y") == b"y"


def test_one_connection_too_many_is_refused(handlers, caplog):
    caplog.set_level(logging.WARNING, "headway")
    running = Running(handlers.by_path, max_connections=1)
    with socket.create_connection(("127.0.0.1", running.port)) as first:
        first.settimeout(NEVER)
        assert first.recv(1)
        with socket.create_connection(("127.0.0.1", running.port)) as second:
            second.settimeout(NEVER)
            with contextlib.suppress(ConnectionError):
                assert second.recv(1) == b""
    assert "a connection was refused" in caplog.text
    running.end()
