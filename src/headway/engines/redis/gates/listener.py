"""What other processes did at the gates that are watched here: one thread and one connection for all of them.

Whenever the clock of a gate moves, the script publishes the new lines of its log. The listener keeps the last of them
(the `Tail`) and wakes the watchers, which read the tail: a hundred subscribers of one process cost the server one
message and not a hundred questions. A watcher that is farther behind than the tail reaches asks the server.

    subscribed      one look tells the clock; the tail begins there, and watchers catch up by themselves
    an event is due the listener of each process looks at that time, and the first look publishes it
    a gap           lines do not follow on the last one: the tail begins anew, and watchers ask
    another gate    the gate was lost or has expired, and began anew: the same, and the watchers notice
    silence         one look every 30 s, by which the time until the next event is measured anew (clocks drift), a
                    watched gate does not expire, and a message that never came is noticed
    a loss          watchers are woken and ask the server, so they learn that it is away; the listener connects again,
                    and watchers check then that the last line that they saw is still there (`GateLog.run`)

The thread starts with the first watcher and ends some seconds after the last.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from headway.core.once import Change
from headway.engines.base import GateLog
from headway.engines.redis.gates.codec import Head, read_news
from headway.engines.redis.gates.commands import GateCommands
from headway.engines.redis.net.connections import CONNECTION_ERRORS
from headway.engines.redis.net.pubsub import PubSubConnection, Rejected
from headway.engines.redis.script.protocol import TICK
from headway.errors import EngineUnavailable, HeadwayError

if TYPE_CHECKING:
    from headway.core.wait_queue import Waker
    from headway.engines.redis.engine import Engine

log = logging.getLogger("headway")

MOST_LINES, MOST_BYTES = 4096, 8 << 20
"""What a tail keeps."""
SILENCE = 30.0
"""Seconds between two looks at a gate at which nothing happens."""
OVERDUE = 1.0
"""Seconds after which a message that must have been sent counts as lost."""
CLOSEST = 0.002
"""Seconds between two looks at least: events that are due one soon after the other are published together."""
LINGER = 5.0
"""Seconds for which a gate is listened to that is not watched any more."""
RETRY, REFUSED_RETRY = 0.2, 1.0


class Tail:
    """The last lines of one gate's log."""

    def __init__(self, commands: GateCommands) -> None:
        self.commands = commands
        self.channel = commands.root + b":news"
        self.lock = threading.Lock()
        self.wakers: dict[int, Waker] = {}
        self.unused = time.monotonic()
        # Whether the lines after `first` are all here, up to `clock`. `first` < `clock` are values of the gate that
        # `began` then.
        self.live = False
        self.run = 0
        self.began = self.first = self.clock = 0
        self.lines: list[Change] = []
        self.size = 0
        # When to look: at once, as soon as the subscription stands.
        self.subscribed = False
        self.look_at = 0.0
        self.looked = 0.0
        # A value that the clock has reached, and when its message must have been here.
        self.expected = 0
        self.overdue = 0.0

    # -- watchers, from any thread -----------------------------------------------------------------------

    def after(self, since: int) -> GateLog | None:
        """The lines after `since`; None if they are not all here."""
        with self.lock:
            if not self.live or not self.first <= since <= self.clock:
                return None
            return GateLog(self.began, self.clock, self.first, self.lines[since - self.first :], self.run)

    def wake_all(self) -> None:
        with self.lock:
            wakers = list(self.wakers.items())
        for key, waker in wakers:
            if waker.alive():
                with contextlib.suppress(RuntimeError):  # another thread has woken it just now
                    waker.wake()
            else:
                self.wakers.pop(key, None)

    # -- the listener ------------------------------------------------------------------------------------

    def lost(self) -> None:
        """The connection has ended."""
        self.live = self.subscribed = False
        self.wake_all()

    def confirmed(self, run: int) -> None:
        self.subscribed = True
        self.run = run
        self.look_at = 0.0

    def heard(self, data: bytes, now: float) -> None:
        """A message: lines that are new."""
        head, lines = read_news(data)
        if not self.live or (head.began * TICK == self.began and head.clock <= self.clock):
            return  # what was published before the look that the tail begins with
        with self.lock:
            follows = head.began * TICK == self.began and bool(lines) and lines[0].clock == self.clock + 1
            if not follows:
                self._begin(head, lines[0].clock - 1 if lines else head.clock)
            self.lines += lines
            self.clock = head.clock
            self.size += len(data)
            self._trim()
        self._plan(head, now)
        self.wake_all()

    def look(self, now: float) -> None:
        """Ask the server how things stand, which publishes what is due."""
        self.looked = now
        head, _ = self.commands.send(self.commands.payload(b"status", b"i"))
        now = time.monotonic()
        self._plan(head, now)
        other = head.began * TICK != self.began
        if not self.live or other or (self.clock < self.expected and now >= self.overdue):
            with self.lock:
                self._begin(head, head.clock)
                self.live = True
            self.wake_all()
        elif head.clock > self.clock and self.expected <= self.clock:
            self.expected, self.overdue = head.clock, now + OVERDUE
            self.look_at = min(self.look_at, self.overdue)
        elif self.clock < self.expected:
            self.look_at = min(self.look_at, self.overdue)

    def _begin(self, head: Head, first: int) -> None:
        self.began = head.began * TICK
        self.first = self.clock = first
        self.lines = []
        self.size = self.expected = 0

    def _trim(self) -> None:
        if len(self.lines) > MOST_LINES or self.size > MOST_BYTES:
            gone = len(self.lines) - len(self.lines) // 2
            del self.lines[:gone]
            self.first += gone
            self.size //= 2

    def _plan(self, head: Head, now: float) -> None:
        """When to look next."""
        self.look_at = now + SILENCE
        if head.due:
            due = now + (head.due - head.now) / 1e6
            self.look_at = min(self.look_at, max(due, self.looked + CLOSEST))


class GateListener:
    """The thread of an engine that hears of its gates."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tails: dict[bytes, Tail] = {}
        self.lock = threading.Lock()
        self.stopped = False
        # Counts connections: with each, the server may be another one, or the same after it was restored.
        self.run = 0
        self._thread: threading.Thread | None = None
        self._ringer: socket.socket | None = None

    # -- watchers, from any thread -----------------------------------------------------------------------

    def watch(self, commands: GateCommands, waker: Waker) -> None:
        with self.lock:
            tail = self.tails.get(commands.root)
            fresh = tail is None
            if tail is None:
                tail = self.tails[commands.root] = Tail(commands)
            with tail.lock:
                tail.wakers[id(waker)] = waker
            if self._thread is None and not self.stopped:
                self._start()
            elif fresh:
                self._ring()

    def unwatch(self, commands: GateCommands, waker: Waker) -> None:
        tail = self.tails.get(commands.root)
        if tail is not None:
            with tail.lock:
                tail.wakers.pop(id(waker), None)
                tail.unused = time.monotonic()

    def stop(self) -> None:
        """The engine is closed."""
        with self.lock:
            self.stopped = True
            self._ring()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="headway gates", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except (
            RuntimeError
        ) as error:  # no more threads: watchers look once a second, and the next one tries again
            self._thread = None
            self.engine.log_once(error)
        except BaseException:
            self._thread = None
            raise

    def _ring(self) -> None:
        if self._ringer is not None:
            with contextlib.suppress(OSError):
                self._ringer.send(b".")

    # -- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        me = threading.current_thread()
        waker, ringer = socket.socketpair()
        with waker, ringer:
            waker.settimeout(0)
            ringer.settimeout(0)
            self._ringer = ringer
            while self._thread is me and not self._may_end():
                pause = RETRY
                try:
                    self._listen(waker)
                    continue
                except (HeadwayError, *CONNECTION_ERRORS) as error:
                    # At the end of the process an embedded server ends first, which is no news.
                    if not self.stopped and not self.engine.ending:
                        self.engine.log_once(error)
                    pause = REFUSED_RETRY if isinstance(error, Rejected) else RETRY
                except Exception:
                    log.exception("the listener of gates of %s failed, and goes on", self.engine.address)
                for tail in list(self.tails.values()):
                    tail.lost()
                if not self.stopped:
                    time.sleep(pause)

    def _may_end(self) -> bool:
        """Whether no gate is watched, so that the thread can end; a later watcher starts another."""
        now = time.monotonic()
        with self.lock:
            for root, tail in list(self.tails.items()):
                if not tail.wakers and now - tail.unused > LINGER:
                    del self.tails[root]
            if self.tails and not self.stopped:
                return False
            self._thread = self._ringer = None
        for tail in list(self.tails.values()):
            tail.lost()
        return True

    def _listen(self, waker: socket.socket) -> None:
        """Until no gate is watched any more, or the connection ends."""
        self.run += 1
        pool = self.engine.pools()[0]
        try:
            pubsub = PubSubConnection(pool)
        except CONNECTION_ERRORS as error:
            self.engine.on_unreachable(pool, error)
            raise
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(pubsub, selectors.EVENT_READ)
                selector.register(waker, selectors.EVENT_READ)
                followed: dict[bytes, Tail] = {}
                while not self.stopped:
                    self._drop_unused(pubsub, followed)
                    if not self.tails:
                        return
                    self._follow(pubsub, followed)
                    selector.select(self._until_look())
                    with contextlib.suppress(OSError):
                        waker.recv(4096)
                    for answer in pubsub.receive():
                        self._heard(answer, followed)
                    pubsub.check(time.monotonic())
                    self._look()
        except Rejected:
            raise
        except CONNECTION_ERRORS as error:
            # Otherwise every caller would find out by itself, each after a time-out.
            pool.discard_connections(error)
            raise
        finally:
            pubsub.close()

    def _drop_unused(self, pubsub: PubSubConnection, followed: dict[bytes, Tail]) -> None:
        now = time.monotonic()
        with self.lock:
            for root, tail in list(self.tails.items()):
                if not tail.wakers and now - tail.unused > LINGER:
                    del self.tails[root]
        for channel, tail in list(followed.items()):
            if self.tails.get(tail.commands.root) is not tail:
                del followed[channel]
                pubsub.send(b"UNSUBSCRIBE", channel)

    def _follow(self, pubsub: PubSubConnection, followed: dict[bytes, Tail]) -> None:
        for tail in list(self.tails.values()):
            if tail.channel not in followed:
                followed[tail.channel] = tail
                pubsub.send(b"SUBSCRIBE", tail.channel)

    def _until_look(self) -> float:
        """Seconds until the first tail looks; at most a second, as a silent server is asked whether it lives."""
        now = time.monotonic()
        looks = [tail.look_at - now for tail in list(self.tails.values()) if tail.subscribed]
        return max(0.0, min([1.0, *looks]))

    def _heard(self, answer: Any, followed: dict[bytes, Tail]) -> None:
        if isinstance(answer, Exception):
            raise Rejected(f"the subscription was refused: {answer}")
        tail = followed.get(answer[1]) if len(answer) > 2 else None
        if tail is None:
            return
        if answer[0] == b"message":
            tail.heard(answer[2], time.monotonic())
        elif answer[0] == b"subscribe":
            tail.confirmed(self.run)

    def _look(self) -> None:
        for tail in list(self.tails.values()):
            now = time.monotonic()
            if not tail.subscribed or now < tail.look_at:
                continue
            try:
                tail.look(now)
            except EngineUnavailable:
                raise
            except HeadwayError as error:
                # The gate of this name has another duration, say: its watchers ask, and are told so.
                self.engine.log_once(error)
                tail.look_at = time.monotonic() + SILENCE
                tail.wake_all()
