"""HTTP/1.1 that answers the hot calls where their request is complete, and gives all else to the application.

uvicorn makes a task, a scope and several messages for each request. A hot call (`headway.service.hot`) needs none of
them: when its last byte has come, its answer is made in the same turn of the event loop. The answers to all requests
that came with one read leave with one write.

Where the engine has to be asked, the call becomes a task. Requests of other connections go on meanwhile, and those that
ask the same ledger travel in one command. Answers of one connection leave in the order of its requests, as HTTP wants:

    a hot call behind a call of the application     goes to the application too, which queues it
    a call of the application behind hot ones       starts when they are answered
    a hot call behind hot ones that ask the engine  is decided at once, and its answer waits for theirs

A client that sends without reading is not read from while answers wait for it (`headway.service.protocol`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headway.service.bodies import BODY_SECONDS, slow_body
from headway.service.encoded import Encoded
from headway.service.hot import Facts, HotCall, HotCalls, KnownHead, Work
from headway.service.protocol import BETWEEN, BODY, HEAD, READ_ON, BoundedProtocol


class _Pending:
    """The answer to a hot call that is not there yet, or waits for those before it."""

    __slots__ = ("data", "keep_alive")

    def __init__(self, keep_alive: bool, data: bytes | None) -> None:
        self.keep_alive = keep_alive
        self.data = data


class HotProtocol(BoundedProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, hot: HotCalls, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._hot = hot
        self._quick = hot.quick
        # The hot call whose request is being read, and what has come of its body.
        self._call: HotCall | None = None
        self._facts: Facts = {}
        self._parts: list[bytes] = []
        self._size = 0
        # How many requests have begun with this read, and what was read of the last one that was answered here.
        self._begun = 0
        self._read: KnownHead | None = None
        self._pending: deque[_Pending] = deque()
        # Answers that leave with the next write.
        self._out: list[bytes] = []
        self._flushing = False
        # No request is answered any more: the connection ends with the answers that are due.
        self._ending = False
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        # Commands that were begun are carried out, as those of the application are.
        self._pending.clear()
        self._out.clear()
        self._call = None
        self._stop_idle_timer()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._pending and not self.pipeline:
            self._ending = True
        else:
            super().shutdown()

    def backlog(self) -> int:
        return len(self.pipeline) + len(self._pending)

    @property
    def idle(self) -> bool:
        return not self._pending and not self._out and super().idle

    # -- requests ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        cycle: Any = self.cycle
        if (
            (self._phase == BETWEEN or (self._phase == HEAD and not self._head_bytes))
            and (cycle is None or cycle.response_complete)
            and not self.pipeline
            and not self._ending
        ):
            done, quick = 0, self._quick
            if quick is not None and not self._pending:
                answers = quick(data, self.server_state.default_headers)
                if answers is not None:
                    self._leave_head()
                    done = quick.done
                    if done == len(data):
                        self._send(answers, quick.answered)
                        return
                    # They leave with those that follow.
                    self._out.append(answers)
                    self.server_state.total_requests += quick.answered - 1
            self._go_on(data[done:] if done else data)
        else:
            super().data_received(data)
        if self._out:
            self._flush()

    def _leave_head(self) -> None:
        """Requests were answered that the parser has not seen."""
        if self._phase != BETWEEN:
            self._enter(BETWEEN)
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()

    def _go_on(self, data: bytes) -> None:
        """Answer what begins with a request."""
        done = self._answer_known(data)
        if done != len(data):
            self._parse_from_begin(data[done:] if done else data)

    def _answer_known(self, data: bytes) -> int:
        """Answer the requests whose heads are known and whose bodies are there; how many bytes they were."""
        hot = self._hot
        known = hot.heads
        done, size = 0, len(data)
        while True:
            body = data.find(b"\r\n\r\n", done) + 4
            head = known.get(data[done:body])
            if head is None or len(self._pending) >= READ_ON:
                break
            end = body + head.length
            if end > size:
                break
            try:
                answer = hot.answer(head.hot, head.facts, data[body:end])
            except Exception as error:  # noqa: BLE001 - a fault of ours is answered too
                answer = hot.failed(error)
            if answer is None:
                break
            if isinstance(answer, Encoded):
                self._answer(answer, True)
            else:
                self._begin(answer, True)
            done = end
            if done == size:
                break
        if done:
            self._leave_head()
        return done

    def _parse_from_begin(self, data: bytes) -> None:
        """Parse what begins with a request; a head that came whole, and alone with its body, is known then."""
        self._begun = 0
        self._read = None
        super().data_received(data)
        read: Any = self._read
        if read is not None and self._begun == 1 and self._phase == BETWEEN:
            body = data.find(b"\r\n\r\n") + 4
            if len(data) - body == read.length:
                self._hot.remember(data[:body], read)

    def on_message_begin(self) -> None:
        self._begun += 1
        # What the application needs besides is made when it gets the request.
        self._enter(HEAD)
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._call = None

    def on_headers_complete(self) -> None:
        if self._ending:
            self._enter(BODY)
            return
        call = self._hot.find(self.parser.get_method(), self.url)
        facts = None if call is None else self._hot.facts(call, self.headers)
        cycle: Any = self.cycle
        if (
            facts is None
            or self.pipeline
            or not (cycle is None or cycle.response_complete)
            or self.parser.should_upgrade()
        ):
            self._give_to_app()
            return
        self.check_backlog()
        self._enter(BODY)
        self._call = call
        self._facts = facts
        self._parts = []
        self._size = 0

    def on_body(self, body: bytes) -> None:
        if self._call is None:
            if not self._ending:
                super().on_body(body)
            return
        self._framing -= 9 * len(body)
        self._parts.append(body)
        self._size += len(body)
        if self._size > self._hot.max_body:
            self._call = None
            self._give_to_app()
            super().on_body(b"".join(self._parts))

    def on_message_complete(self) -> None:
        call = self._call
        if call is None:
            if self._ending:
                self._enter(BETWEEN)
            else:
                super().on_message_complete()
            return
        self._call = None
        raw = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        answer = self._decide(call, self._facts, raw)
        if answer is None:
            self._give_to_app()
            if raw:
                super().on_body(raw)
            super().on_message_complete()
            return
        self._enter(BETWEEN)
        keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        if keep_alive:
            self._read = KnownHead(call, self._facts, self._size)
        if isinstance(answer, Encoded):
            self._answer(answer, keep_alive)
        else:
            self._begin(answer, keep_alive)

    def _decide(self, call: HotCall, facts: Facts, raw: bytes) -> Encoded | Work | None:
        try:
            return self._hot.answer(call, facts, raw)
        except Exception as error:  # noqa: BLE001 - a fault of ours is answered too
            return self._hot.failed(error)

    def _give_to_app(self) -> None:
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)
        self.url, self.expect_100_continue = url, expect
        self.headers += headers  # the same list is in the scope
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self._pending:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))
        else:
            super()._start_asgi_task(cycle, app)

    def _start_timer(self) -> None:
        if self._call is None:
            super()._start_timer()
        else:
            self._timer = self.loop.call_later(BODY_SECONDS, self._too_slow)

    def _too_slow(self) -> None:
        call = self._call
        if call is None or self.flow.read_paused:
            super()._too_slow()
            return
        self._call = None
        self._enter(BETWEEN)
        answer = slow_body().encoded()
        call.call.count(answer)
        self._answer(answer, False)
        self._flush()

    # -- answers -----------------------------------------------------------------------------------------

    def _begin(self, work: Work, keep_alive: bool) -> None:
        pending = _Pending(keep_alive, None)
        self._pending.append(pending)
        self._ending = self._ending or not keep_alive
        task: asyncio.Task[Any] = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(partial(self._end, pending))
        if len(self._pending) > READ_ON:
            self.flow.pause_reading()

    def _end(self, pending: _Pending, task: asyncio.Task[Encoded]) -> None:
        self.tasks.discard(task)
        if self.transport.is_closing():
            if not task.cancelled() and task.exception() is not None:
                self._hot.failed(task.exception())
            return
        if task.cancelled():
            self.transport.abort()  # the server ends at once
            return
        error = task.exception()
        pending.data = self._hot.written(
            task.result() if error is None else self._hot.failed(error),
            self.server_state.default_headers,
            pending.keep_alive,
        )
        while self._pending and self._pending[0].data is not None:
            self._out.append(self._pending.popleft().data)  # type: ignore[arg-type] # it is there
        if not self._pending:
            self._flush()
            if self.pipeline:
                super()._start_asgi_task(*self.pipeline.pop())
        elif self._out and not self._flushing:
            # Others of this turn may leave with it.
            self._flushing = True
            self.loop.call_soon(self._flush)
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _answer(self, answer: Encoded, keep_alive: bool) -> None:
        self._ending = self._ending or not keep_alive
        data = self._hot.written(answer, self.server_state.default_headers, keep_alive)
        if self._pending:
            self._pending.append(_Pending(keep_alive, data))
        else:
            self._out.append(data)

    def _flush(self) -> None:
        self._flushing = False
        out = self._out
        if out:
            self._send(out[0] if len(out) == 1 else b"".join(out), len(out))
            out.clear()

    def _send(self, answers: bytes, count: int) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(answers)
        self.server_state.total_requests += count
        if self._ending and not self._pending:
            self.transport.close()
            return
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._end_if_idle)

    def send_400_response(self, msg: str) -> None:
        self._flush()
        super().send_400_response(msg)

    # -- between requests --------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def handle_websocket_upgrade(self) -> None:
        self._stop_idle_timer()
        super().handle_websocket_upgrade()

    def _end_if_idle(self) -> None:
        """Looked at now and then, since a timer for each answer would cost as much as a part of it."""
        self._idle_timer = None
        if self.transport.is_closing():
            return
        rest = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if rest <= 0 and self.idle and self._phase == BETWEEN:
            self.transport.close()
        else:
            seconds = rest if rest > 0 else self.timeout_keep_alive
            self._idle_timer = self.loop.call_later(seconds, self._end_if_idle)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
