"""What a process says to a service, and hears of it: a session, one thread that sends and one that listens.

**Sending.** Commands of all threads and tasks go into one queue. The sender takes what is there, sends it as one batch
and waits for the answers; what comes meanwhile gathers for the next batch. Every command has a number in its session,
which the server applies once, so a batch whose answer was lost is sent again as it was, on another connection. Releases
and their like are posted: no caller waits for them, and they are sent again until they are delivered.

**Listening.** One answer that does not end (`Listener`) tells of permits that were waited for, of slots that were moved
and of gates whose clock has moved. Nothing is polled.

**The session.** While permits are out, while callers wait and while gates are watched, the server hears of this process
at least every third of the lease. A server that was restarted knows no session of before: a new one begins, and waiters
request anew. So it is when the server was out of reach for two leases.
"""

from __future__ import annotations

import itertools
import json
import secrets
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headway.clock import SYSTEM
from headway.engines.http.bell import Bell
from headway.engines.http.http11 import CONNECTION_ERRORS, BadAnswer, Connection
from headway.engines.http.listener import Listener
from headway.engines.http.requests import Open, Request, Sample
from headway.engines.wire import PATH, error_in
from headway.errors import EngineUnavailable, seconds_text

if TYPE_CHECKING:
    import asyncio

    from headway.engines.http.decision import RemoteDecision
    from headway.engines.http.engine import Engine
    from headway.engines.http.gate import HttpGate
    from headway.engines.http.ledgers import HttpLedgers

MOST = 1000
"""Commands in one batch."""
MOST_BYTES = 400_000
"""What a batch may have, more or less: a server refuses bodies of 1 MB."""
SHORTEST, LONGEST = 0.02, 1.0
"""Seconds between two attempts to reach a server that does not answer."""
TIDY = 0.5
"""Seconds after which permits that were dropped are told of, if nothing else is said."""
RETRIES = 2
"""How often a batch is sent again at once when its connection breaks."""
PATIENCE = 2.0
"""Seconds that a server has for a batch before its connection is taken for dead; callers have their own time-outs."""
FAREWELL = 1.0
"""Seconds that a server has to hear that a client goes."""
GONE = 410
"""The status with which a server says that it does not know the session."""


class Channel:
    """One process's session with a service."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self.address = engine.where
        self.host = self.address.hosts[0]
        self.log_once = engine.log_once
        self.lease_ns = engine.lease_ns
        self.stopped = self._leaving = False
        self.queue: deque[Request] = deque()
        # Permits that were freed, by session and number: without a word, in the midst of an acquire, without an end.
        self.forgotten: deque[tuple[int, int]] = deque()
        self.withdrawn: deque[tuple[int, int]] = deque()
        self.dropped: deque[tuple[int, int]] = deque()
        # Limiters that were freed without being closed.
        self.unopened: deque[tuple[int, int]] = deque()
        self.decisions: weakref.WeakValueDictionary[int, RemoteDecision] = weakref.WeakValueDictionary()
        self.ledgers: weakref.WeakValueDictionary[int, HttpLedgers] = weakref.WeakValueDictionary()
        self.gates: weakref.WeakValueDictionary[int, HttpGate] = weakref.WeakValueDictionary()
        self.sample: Sample | None = None
        self.number = 0
        self._bell = Bell()
        self._idle = threading.Event()
        self._idle.set()
        self.once = threading.Lock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started = False
        self._connection: Connection | None = None
        self._probing = False
        self._heard_at = 0
        self._listener = Listener(self)
        self._begin_session()

    def _begin_session(self) -> None:
        """As a process that no server knows."""
        self.number += 1
        self.session = secrets.token_hex(16)
        # Whether no server has heard of the session.
        self.fresh = True
        self._ids = itertools.count(1)
        self._answered = 0
        self.sample = None
        self._unreachable_since = 0
        for decision in list(self.decisions.values()):
            decision.lose()
        self.decisions.clear()
        self._listener.again()
        for gate in list(self.gates.values()):
            gate.begin_session()

    @property
    def timeout(self) -> float:
        """Seconds that connecting may take."""
        engine = self._engine()
        return 1.0 if engine is None else engine.timeout

    # -- for threads and tasks ---------------------------------------------------------------------------

    def post(self, request: Request) -> None:
        """Say something without waiting for an answer; never blocks, never raises."""
        self._idle.clear()
        self.queue.append(request)
        self._start()
        self.ring()

    def ring(self) -> None:
        """Have the sender look; finalizers may call it."""
        self._bell.ring()

    def call(self, request: Request, timeout_ns: int) -> Any:
        """Send it for this thread; the answer, or what went wrong is raised."""
        request.waker = bell = Bell()
        try:
            self.post(request)
            bell.wait(timeout_ns / 1e9)
        except BaseException:
            self._abandon(request)
            raise
        if not self._abandon(request):
            raise self.unavailable(f"no answer within {seconds_text(timeout_ns / 1e9)}")
        if request.error is not None:
            raise request.error
        return request.answer

    async def call_async(self, request: Request, timeout_ns: int, loop: asyncio.AbstractEventLoop) -> Any:
        """Send it for this task."""
        request.loop = loop
        request.future = future = loop.create_future()
        timer = loop.call_later(timeout_ns / 1e9, _resolve, future)
        try:
            self.post(request)
            await future
        except BaseException:
            self._abandon(request)
            raise
        finally:
            timer.cancel()
        if not self._abandon(request):
            raise self.unavailable(f"no answer within {seconds_text(timeout_ns / 1e9)}")
        if request.error is not None:
            raise request.error
        return request.answer

    def _abandon(self, request: Request) -> bool:
        """Its caller goes on; whether the answer is there. One that comes later is undone."""
        with self.once:
            request.orphan = request.orphan or not request.done
            return request.done

    def unavailable(self, text: str) -> EngineUnavailable:
        return EngineUnavailable(self.address.public, text)

    def listen(self) -> None:
        """Something may be told from now on."""
        self._listener.start()

    def probe(self) -> None:
        """Find out soon whether the server is there."""
        if self.decisions or self._watching():
            self._probing = True
            self._bell.ring()

    def log_loss(self, error: Exception) -> None:
        """The listener's connection broke, unless it was closed from here or by our goodbye."""
        if not self.stopped and not self._leaving and not self.fresh:
            self.log_once(error)

    def alive_until(self) -> int:
        """Until when the server believes that this process lives, on our clock."""
        return self._heard_at + int(self.lease_ns * 0.99)

    def flush(self, seconds: float) -> bool:
        """Wait until all that was posted has been delivered, for so long at most; whether it has."""
        if self._to_tidy():
            self._idle.clear()
            self._probing = True
        if self._idle.is_set():
            return True
        self._start()
        self._bell.ring()
        return self._idle.wait(seconds)

    def close(self) -> None:
        """Say goodbye, and end the threads."""
        if self.stopped:
            return
        if not self.fresh and self._unreachable_since == 0:
            self._leaving = True
            self.post(Request(None, "bye"))
            self.flush(min(self.timeout, FAREWELL))
        self.stopped = True
        self._bell.ring()
        self._listener.again()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(PATIENCE + FAREWELL)
        self._listener.join(1)

    def forget(self) -> None:
        """In a forked child: the connections are the parent's."""
        self.stopped = True
        if self._connection is not None:
            self._connection.forget()
        self._listener.forget()

    def _start(self) -> None:
        if not self._started:
            with self._starting:
                if not self._started and not self.stopped:  # type: ignore[redundant-expr] # another thread was first
                    self._started = True
                    thread = threading.Thread(target=self._run, name="headway http", daemon=True)
                    thread.start()
                    self._thread = thread
                    engine = self._engine()
                    if engine is not None:
                        engine.plan_flush_at_exit()

    # -- the sender --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over():
                self._send_what_is_there()
                if self.queue:
                    continue
                self._idle.set()
                if self.queue:
                    self._idle.clear()
                    continue
                if self._over():
                    return  # what rang for that was heard elsewhere
                rang = self._bell.wait(self._pause())
                if not rang and self._to_tidy():
                    self._probing = True
        finally:
            self._idle.set()
            if self._connection is not None:
                self._connection.close()

    def _over(self) -> bool:
        return self.stopped

    def _pause(self) -> float | None:
        """Until when the sender sleeps if it is not woken."""
        if not self.decisions and not self._to_tidy() and not self._watching():
            return None
        return min(TIDY, max(0.0, (self._heard_at + self.lease_ns // 3 - SYSTEM.now()) / 1e9))

    def _to_tidy(self) -> bool:
        """Whether finalizers have left something to say."""
        return not self.fresh and bool(self.forgotten or self.withdrawn or self.dropped or self.unopened)

    def _watching(self) -> bool:
        return any(gate.watched for gate in list(self.gates.values()))

    def _send_what_is_there(self) -> None:
        batch = self._gather()
        due = self._heard_at + self.lease_ns // 3 <= SYSTEM.now() and (
            bool(self.decisions) or self._watching()
        )
        if batch or self._probing or due or (not self.fresh and (self.dropped or self.withdrawn)):
            self._probing = False
            self._deliver(batch)

    def _gather(self) -> list[Request]:
        """The next batch: commands with their numbers, each after what opens what it is for."""
        batch: list[Request] = []
        size = 0
        while self.queue and len(batch) < MOST and size < MOST_BYTES:
            request = self.queue.popleft()
            if request.orphan:
                continue
            target = request.target
            if target is not None and target.opened != self.number:
                target.opened = self.number
                self._add(batch, Open(target))
            size += self._add(batch, request)
        return batch

    def _add(self, batch: list[Request], request: Request) -> int:
        request.id = next(self._ids)
        request.numbered(self.number)
        said = request.encode(self.number)
        if said is None:
            self._settle([request])
            return 0
        text = request.text = json.dumps(said, separators=(",", ":"))
        batch.append(request)
        return len(text)

    def _deliver(self, batch: list[Request]) -> None:
        """Send a batch until it is answered, or until the session is lost."""
        head = {
            "session": self.session,
            "lease": self.lease_ns,
            "new": self.fresh,
            "answered": self._answered,
            "heard": self._listener.heard_in(self.number),
            "forget": _take(self.forgotten, self.number),
            "withdraw": _take(self.withdrawn, self.number),
            "drop": _take(self.dropped, self.number),
            "close": _take(self.unopened, self.number),
        }
        text = json.dumps(head, separators=(",", ":"))[:-1]
        body = f'{text},"commands":[{",".join([request.text for request in batch])}]}}'.encode()
        pause, tries = SHORTEST, 0
        for request in batch:
            request.first_sent = SYSTEM.now()
        while True:
            try:
                sent = SYSTEM.now()
                status, raw = self._exchange(body)
                received = SYSTEM.now()
                said = json.loads(raw)
                if status == 200:
                    self._apply(batch, said, Sample(sent, received, said["now"]))
                    return
                if status == GONE:
                    self._begin_session()
                    self._send_again(batch)
                    return
                trouble: Exception = BadAnswer(f"it answered {status}: {said.get('detail', said)}")
                if status in (400, 413, 415, 422):
                    # It will never be taken.
                    _not_opened(batch)
                    self._fail(batch, trouble)
                    return
            except (*CONNECTION_ERRORS, ValueError, KeyError, TypeError, AttributeError) as error:
                connected = self._connection is not None
                self._disconnect()
                tries += 1
                if connected and not self.stopped and (tries <= RETRIES or isinstance(error, TimeoutError)):
                    continue  # it was cut, or closed since it was used last; or it is slow, and callers know how long
                trouble = error
            if self._give_up(batch, trouble):
                return
            self._bell.wait(pause)
            pause = min(2 * pause, LONGEST)

    def _exchange(self, body: bytes) -> tuple[int, bytes]:
        if self._connection is None:
            self._connect()
        assert self._connection is not None
        return self._connection.post(PATH, body, PATIENCE)

    def _connect(self) -> None:
        """To the server of the session; to any of them where there is none."""
        hosts = self.address.hosts if self.fresh else (self.host,)
        for host in hosts:
            try:
                self._connection = Connection(self.address, host, self.timeout)
            except OSError:
                if host == hosts[-1]:
                    raise
            else:
                self.host = host
                return

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _give_up(self, batch: list[Request], trouble: Exception) -> bool:
        """The server cannot be reached: callers hear it. Whether nothing is left that is worth another attempt."""
        self.log_once(trouble)
        now = SYSTEM.now()
        self._unreachable_since = self._unreachable_since or now
        if len(self.address.hosts) > 1 and not self.fresh and not self.stopped:
            # The session is gone with its server: another one is asked.
            self._begin_session()
            self._send_again(batch)
            return True
        self._fail([request for request in (*batch, *self.queue) if request.awaited], trouble)
        if now - self._unreachable_since > 2 * self.lease_ns:
            self._begin_session()  # no server knows the old one any more
        if not self.fresh and not self.stopped:
            return False
        # Of a session that no server has heard of there is nothing to be delivered.
        _not_opened(batch)
        return True

    def _send_again(self, batch: list[Request]) -> None:
        """What callers wait for goes before all that came later. What was posted belongs to the old session."""
        self.queue.extendleft(reversed([request for request in batch if request.awaited]))

    # -- answers -----------------------------------------------------------------------------------------

    def _apply(self, batch: list[Request], said: dict[str, Any], sample: Sample) -> None:
        if self.fresh:
            self.fresh = False
            self._listener.known()
        self._unreachable_since = 0
        self._heard_at = sample.sent
        self.sample = sample
        refused: dict[Any, Exception] = {}
        for request, (id, kind, answer) in zip(batch, said["answers"], strict=True):
            if id != request.id:
                raise BadAnswer("answers in another order")
            if kind == "error":
                error = refused.get(request.target) or self._own(error_in(answer))
                if isinstance(request, Open):
                    # What comes after it hears why it could not be opened.
                    refused[request.target] = error
                    _not_opened([request])
                self._refused(request, error)
            else:
                request.apply(answer, sample)
                request.applied = True
        if batch:
            self._answered = batch[-1].id
        for id in said["revoked"]:
            if (decision := self.decisions.get(id)) is not None:
                decision.lose()
        self._settle(batch)

    def _own(self, error: Exception) -> Exception:
        """What the service's engine says, as this engine's."""
        if isinstance(error, EngineUnavailable):
            return self.unavailable(f"{error.engine}: {error.cause_text}")
        return error

    def _refused(self, request: Request, error: Exception) -> None:
        if request.awaited:
            request.error = error
        elif not request.orphan:
            self.log_once(error)

    def _fail(self, requests: list[Request], trouble: Exception) -> None:
        text = str(trouble) or type(trouble).__name__
        for request in requests:
            request.error = self.unavailable(text)
        self._settle(requests, failed=True)

    def _settle(self, requests: list[Request], failed: bool = False) -> None:
        """Let the callers go on; what was decided for callers that have gone is undone."""
        loops: dict[Any, list[Any]] = {}
        for request in requests:
            with self.once:
                late = request.orphan
                request.done = True
                if failed:
                    # It may have been applied, and will be answered then.
                    request.orphan = True
            if late:
                if request.applied:
                    request.unheard()
            elif request.waker is not None:
                request.waker.ring()
            elif request.future is not None:
                loops.setdefault(request.loop, []).append(request)
        for loop, done in loops.items():
            try:
                loop.call_soon_threadsafe(_resolve_all, done)
            except RuntimeError:  # the loop was closed with tasks in it
                for request in done:
                    request.unheard()

    # -- what the listener hears -------------------------------------------------------------------------

    def hear(self, message: list[Any]) -> None:
        """One message of the server."""
        kind, number, *rest = message
        if kind == "gate":
            gate = self.gates.get(number)
            if gate is not None:
                gate.wake_all()
        elif kind == "notify":
            ledgers = self.ledgers.get(number)
            if ledgers is not None:
                ledgers.notify(*rest)
        elif (decision := self.decisions.get(number)) is not None:
            if kind == "told":
                decision.tell(rest[0], self.sample)
            elif kind == "moved":
                decision.move(rest[0], rest[1], self.sample)
            else:
                decision.lose()


def _not_opened(batch: list[Request]) -> None:
    """No server has heard that these were opened."""
    for request in batch:
        if isinstance(request, Open) and request.target is not None:
            request.target.opened = 0


def _take(freed: deque[tuple[int, int]], session: int) -> list[int]:
    """Numbers of permits of this session."""
    found: list[int] = []
    with suppress(IndexError):
        while len(found) < MOST:
            number, id = freed.popleft()
            if number == session:
                found.append(id)
    return found


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _resolve_all(requests: list[Request]) -> None:
    for request in requests:
        _resolve(request.future)
