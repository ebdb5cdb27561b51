"""The gRPC server on real sockets; the client is grpcio."""

import asyncio
import concurrent.futures
import contextlib
import logging
import socket
import threading
from typing import Any

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


class Soon:
    """Answers calls later, without a task; what the message says is done with the call."""

    def __init__(self):
        self.calls = []
        self.running: Any = None
        self.method: Any = None
        self.cancelled = threading.Event()
        self.asked = threading.Event()

    def cancel(self):
        self.cancelled.set()

    def begin(self, message, call):
        loop = asyncio.get_running_loop()
        self.calls.append(call)
        self.asked.set()
        if message == b"no":
            return None
        if message == b"at once":
            call.answer(b"here")
        elif message == b"raise":
            raise ZeroDivisionError("a secret")
        elif message == b"refuse":
            loop.call_soon(call.fail, GrpcError(GrpcStatus.INVALID_ARGUMENT, "the domain is empty"))
        elif message == b"fail":
            loop.call_soon(call.fail, ZeroDivisionError("a secret"))
        elif message != b"never":
            loop.call_soon(call.answer, b"later")
            loop.call_soon(call.answer, b"twice")
            loop.call_soon(call.fail, ZeroDivisionError("after the end"))
        return self


@pytest.fixture
def soon(handlers):
    soon = Soon()
    running = Running(handlers.by_path, soon=("/t.T/echo", soon.begin), guard=soon_guard)
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        soon.running, soon.method = running, channel.unary_unary("/t.T/echo")
        yield soon
    running.end()


def soon_guard(token):
    if token == "wrong":
        raise GrpcError(GrpcStatus.PERMISSION_DENIED, "another token is needed")


def tasks_of(running):
    return [task for connection in running.server.connections for task in connection.tasks]


def test_a_call_is_answered_soon_without_a_task(soon, caplog):
    assert soon.method(b"x", timeout=NEVER) == b"later"
    assert soon.method(b"at once", timeout=NEVER) == b"here"
    assert soon.method(b"no", timeout=NEVER) == b"no", "what is left to a handler is the handler's"
    assert tasks_of(soon.running) == []
    assert not caplog.records


@pytest.mark.parametrize(
    ("message", "code", "details"),
    [
        (b"refuse", "INVALID_ARGUMENT", "the domain is empty"),
        (b"fail", "INTERNAL", "the call failed; the server's log says why"),
        (b"raise", "INTERNAL", "the call failed; the server's log says why"),
    ],
)
def test_what_fails_soon_reaches_the_client(soon, message, code, details):
    with pytest.raises(grpc.RpcError) as caught:
        soon.method(message, timeout=NEVER)
    assert (caught.value.code().name, caught.value.details()) == (code, details)
    assert tasks_of(soon.running) == []


def test_a_guard_is_asked_before(soon):
    with pytest.raises(grpc.RpcError) as caught:
        soon.method(b"x", timeout=NEVER, metadata=[("authorization", "wrong")])
    assert caught.value.code().name == "PERMISSION_DENIED"
    assert not soon.calls


def test_a_call_whose_time_is_over_is_cancelled_and_a_late_answer_dropped(soon):
    with pytest.raises(grpc.RpcError) as caught:
        soon.method(b"never", timeout=0.2)
    assert caught.value.code().name == "DEADLINE_EXCEEDED"
    assert soon.cancelled.wait(NEVER)
    soon.running.loop.call_soon_threadsafe(soon.calls[0].answer, b"late")
    assert soon.method(b"x", timeout=NEVER) == b"later"


def test_a_client_that_gives_up_or_goes_cancels_it(soon):
    asked = soon.method.future(b"never", timeout=NEVER)
    assert soon.asked.wait(NEVER)
    asked.cancel()
    assert soon.cancelled.wait(NEVER)
    soon.cancelled.clear()
    soon.asked.clear()
    with grpc.insecure_channel(
        f"127.0.0.1:{soon.running.port}", [("grpc.use_local_subchannel_pool", 1)]
    ) as own:
        asked = own.unary_unary("/t.T/echo").future(b"never", timeout=NEVER)
        assert soon.asked.wait(NEVER)
    assert asked.done()
    assert soon.cancelled.wait(NEVER)
