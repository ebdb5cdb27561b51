"""What has to happen between calls: heartbeats, messages, and releases that could not be written.

Two threads of a process work for an engine, from the first waiter or lease until nothing is left to do. The *worker*
visits every ledger that has waiters, sleepers or leases, three times in a lease. It renews the leases, polls for the
waiters (a message may have been lost) and learns of pauses and losses. In a cluster it also queries whether limiters
whose keys are used are paused (`cluster/pause.py`). When the head of a queue is ready, it polls for all waiters of that
ledger at once. The *listener* has the one subscription of the process, and wakes waiters whose turn has come.

Threads, also for asyncio: a holder whose event loop is busy lives all the same.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from struct import unpack_from
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from headway.engines.redis.client.batching import FEW, thread_batcher
from headway.engines.redis.client.ledger_client import UNPLANNED
from headway.engines.redis.client.requests import (
    NOTHING,
    PollQueue,
    Release,
    Renew,
    Request,
    Wakeup,
    Withdraw,
)
from headway.engines.redis.cluster.pause import UNUSED, ClusterPause
from headway.engines.redis.net.connections import CONNECTION_ERRORS, ReleaseSender
from headway.engines.redis.net.pubsub import Rejected
from headway.engines.redis.script.protocol import read_numbers
from headway.errors import EngineUnavailable, HeadwayError

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.engines.redis.client.batching import UnknownOutcome
    from headway.engines.redis.client.ledger_client import LedgerClient
    from headway.engines.redis.engine import Engine

log = logging.getLogger("headway")

SOON = 0.001
ALERT = 50
"""Rounds of a millisecond, after the last end that was left to travel with a question."""
CALM = 10
"""Rounds of 20 ms without releases, after which it sleeps until the next visits, or until it is woken."""
FIRST_RETRY, UNKNOWN_RETRY = 0.02, 0.5
"""Seconds until something is tried again that failed; twice as long each time. The second is the longest pause of
finding out what has become of a command."""
LINGER = 20
"""Rounds without anything to do after which the threads end."""
MAX_UNKNOWN = 1024
"""Commands without an answer that are remembered; what older ones were granted comes back with its lease."""


class Waker:
    """An event for one waiting thread. That of `threading` has a lock inside, which a signal handler that raises at the
    wrong moment leaves taken: no thread could wake another any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is set; not asked before, as another thread may do so
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Until it is set, for so long at most; when we know of it, it is not set any more."""
        return self._lock.acquire(timeout=seconds)


class Backoff:
    """When something that failed may be tried again: soon, then twice as late each time, up to `longest`."""

    __slots__ = ("_clock", "_longest_ns", "_pause_ns", "_ready")

    def __init__(self, clock: Clock, longest_ns: int) -> None:
        self._clock = clock
        self._longest_ns = longest_ns
        self.succeeded()

    def succeeded(self) -> None:
        self._ready = 0
        self._pause_ns = min(int(FIRST_RETRY * 1e9), self._longest_ns)

    def failed(self) -> None:
        self._ready = self._clock.now() + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, self._longest_ns)

    def left(self) -> float:
        """Seconds until it may be tried again."""
        return max(0, self._ready - self._clock.now()) / 1e9


class BackgroundWorker:
    """The two threads of an engine, started when they are needed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ledgers: set[LedgerClient] = set()
        self.cluster_pauses: set[ClusterPause] = set()
        self.retry_queue: deque[Request] = deque()
        self._errands_retry = Backoff(engine.clock, engine.lease_ns // 3)
        self.unknown_outcomes: deque[UnknownOutcome] = deque()
        # Re-entrant: the garbage collector may run while this thread has it, and end a permit whose release is posted.
        self._lock = threading.RLock()
        self._wake = Waker()
        self._thread: threading.Thread | None = None
        self._listener: threading.Thread | None = None
        self.stopped = False
        self._flush_planned = False
        # Whether it has to be woken to be there in a millisecond, or at all before the next visits.
        self._resting = self._drowsy = True
        self._doubts_retry = Backoff(engine.clock, int(UNKNOWN_RETRY * 1e9))
        # Polls by their time, with a number, as clients cannot be compared; clients whose last poll failed; and when
        # the thread wakes by itself.
        self._polls: list[tuple[int, int, LedgerClient]] = []
        self._numbers = itertools.count()
        self._unanswered: set[LedgerClient] = set()
        self._rises = 0
        # Whether it was woken to poll earlier, and to go round.
        self._early = self._called = False

    def track(self, ledger: LedgerClient) -> None:
        """Visit this ledger from now on, for as long as it has waiters or leases of this process."""
        if ledger not in self.ledgers or self._thread is None:
            with self._lock:
                self.ledgers.add(ledger)
                self._start()

    def plan_poll(self, ledger: LedgerClient, at: int) -> None:
        """Poll for the waiters of a ledger at this time, unless that happens earlier."""
        with self._lock:
            if at >= ledger.poll_at:
                return
            ledger.poll_at = at
            heapq.heappush(self._polls, (at, next(self._numbers), ledger))
            self._start()
        if at < self._rises:
            self._early = True
            self._wake.set()

    def follow(self, pause_state: ClusterPause) -> None:
        """Ask whether this limiter is paused, for as long as its keys are used."""
        with self._lock:
            self.cluster_pauses.add(pause_state)
            self._start()

    def flush(self) -> None:
        """There are releases: their replies are read from now on, as not all of them may arrive."""
        if self._thread is None:
            with self._lock:
                self._start()
        elif self._drowsy:
            self._drowsy = False
            self.wake()

    def flush_soon(self) -> None:
        """There are ends that may have to be posted, in a millisecond."""
        self.flush()
        if self._resting:
            self.wake()

    def retry_later(self, request: Request) -> None:
        """Send a request whose reply no caller waits for."""
        with self._lock:
            self.retry_queue.append(request)
            self._start()
        self.wake()

    def resolve_unknown(self, outcome: UnknownOutcome) -> None:
        """Find out whether a command was applied."""
        with self._lock:
            forgotten = self.unknown_outcomes.popleft() if len(self.unknown_outcomes) >= MAX_UNKNOWN else None
            self.unknown_outcomes.append(outcome)
            self._start()
        if forgotten is not None:
            forgotten.give_up()
        self.wake()

    def _start(self) -> None:
        if self._thread is None and not self.stopped:
            thread = threading.Thread(target=self._keep, name="headway worker", daemon=True)
            if self._thread is None:  # the garbage collector may have run, and started it
                self._thread = thread
                try:
                    running = self._started(thread)
                except BaseException:
                    # A signal's handler has raised. Should the thread run all the same, it ends by itself.
                    self._thread = None
                    raise
                if not running:
                    self._thread = None
            if not self._flush_planned:
                self._flush_planned = True
                self.engine.plan_flush_at_exit()

    def listen(self) -> None:
        """Make sure that messages are heard; what is said before the subscription stands is asked for."""
        if self._listener is None:
            with self._lock:
                if self._listener is None and not self.stopped:  # type: ignore[redundant-expr] # by another thread
                    self._listener = threading.Thread(target=self._hear, name="headway listener", daemon=True)
                    try:
                        running = self._started(self._listener)
                    except BaseException:  # as above
                        self._listener = None
                        raise
                    if not running:
                        self._listener = None

    def _started(self, thread: threading.Thread) -> bool:
        """A process that may have no more threads, or ends, asks and posts all the same; the next one tries again."""
        try:
            thread.start()
        except RuntimeError as error:
            self.engine.log_once(error)
            return False
        return True

    def wake(self) -> None:
        """Have the thread go round now."""
        self._called = True
        self._wake.set()

    def hurry(self) -> bool:
        """Deliver what is left, and release what was dropped; whether anything is left."""
        for ledger in list(self.ledgers):
            ledger.visited = 0
        busy = any(ledger.busy for ledger in list(self.ledgers))
        left = bool(busy or self._has_releases() or self.retry_queue or self.unknown_outcomes)
        if left:
            self.flush()
            self.wake()
        return left

    # -- the worker --------------------------------------------------------------------------------------

    def _keep(self) -> None:
        idle = alert = after = uncontended = 0
        step = self.engine.lease_ns / 3e9
        me = threading.current_thread()
        while self._thread is me:
            alert = ALERT if self.engine.deferred or self._waiting_letters() else alert - 1
            self._resting = alert <= 0
            # First the flag: a release that comes after we have looked for one wakes us.
            self._drowsy = uncontended >= CALM and alert <= 0
            if alert <= 0 and self._has_releases():
                uncontended, self._drowsy = 0, False
            pause = SOON if alert > 0 else 0.02 if uncontended < CALM else step
            woken = self._wake.wait(self._until_poll(self._until_retry(pause)))
            self._rises = 0
            self._resting = self._drowsy = False
            woken = woken and (self._called or not self._early)
            self._called = self._early = False
            self._poll()
            uncontended = 0 if woken else uncontended + 1
            if woken and self.engine.deferred and self.engine.clock.now() < after:
                alert = ALERT  # ends come one soon after the other: to be woken for each would cost more than to look
            self._post_ends()
            if not woken and self.engine.clock.now() < after:
                continue  # a poll, or a look for ends: the rest has time
            after = self.engine.clock.now() + 20_000_000
            with self._lock:
                ledgers = self._busy_accounts()
                anything = (
                    ledgers
                    or self.cluster_pauses
                    or self.retry_queue
                    or self.unknown_outcomes
                    or self._has_releases()
                )
                idle = 0 if anything or uncontended < CALM else idle + 1
                if idle > LINGER or self.stopped:
                    self._thread = None
                    # A thread that posts a release looks for the worker afterwards, and the worker looks for releases.
                    if self.stopped or not self._has_releases():
                        return
                    self._thread = me
            try:
                for pool in self.engine.pools():
                    pool.release_sender.flush()
                self._resolve_unknown()
                self._run_retries()
                self._ask_for_pauses(step)
                self._visit(ledgers, step)
            except Exception:
                log.exception("the background worker of %s failed, and goes on", self.engine.address)

    def _until_poll(self, pause: float) -> float:
        """Seconds until the next poll, if that is sooner."""
        now = self.engine.clock.now()
        # First the time: a poll that is planned after we have looked for one wakes us.
        self._rises = now + int(pause * 1e9)
        with self._lock:
            if self._polls:
                self._rises = min(self._rises, self._polls[0][0])
        return max(0.0, (self._rises - now) / 1e9)

    def _poll(self) -> None:
        """Poll for the waiters whose time has come. A ledger that does not answer twice is given up: its waiters
        request again, and learn of it."""
        while (ledger := self._next_poll()) is not None:
            try:
                if ledger.standing:
                    thread_batcher(ledger).send(PollQueue(ledger))
                self._unanswered.discard(ledger)
            except (HeadwayError, *CONNECTION_ERRORS) as error:
                self.engine.log_once(error)
                if ledger in self._unanswered:
                    self._unanswered.discard(ledger)
                    give_up(ledger)
                else:
                    self._unanswered.add(ledger)
                    self.plan_poll(ledger, self.engine.clock.now() + ledger.registry.timeout_ns)
            except Exception:
                log.exception("the background worker of %s failed, and goes on", self.engine.address)

    def _next_poll(self) -> LedgerClient | None:
        now = self.engine.clock.now()
        with self._lock:
            while self._polls and self._polls[0][0] <= now:
                at, _, ledger = heapq.heappop(self._polls)
                if ledger.poll_at == at:
                    ledger.poll_at = UNPLANNED
                    return ledger
        return None

    def _until_retry(self, pause: float) -> float:
        """How long to sleep, so as to be there when something that failed may be tried again."""
        for backlog, retry in (
            (self.unknown_outcomes, self._doubts_retry),
            (self.retry_queue, self._errands_retry),
        ):
            if backlog:
                pause = min(pause, max(FIRST_RETRY, retry.left()))
        return pause

    def _post_ends(self) -> None:
        """What has not travelled with a question by now."""
        try:
            for ledger in list(self.engine.deferred):
                self.engine.flush(ledger)
            for posts in self._waiting_letters():
                posts.flush()
        except Exception:
            log.exception("the background worker of %s failed, and goes on", self.engine.address)

    def _busy_accounts(self) -> list[LedgerClient]:
        for ledger in list(self.ledgers):
            if not ledger.busy:
                # A waiter or lease that begins now either sees that its ledger is not visited, or is seen here.
                self.ledgers.discard(ledger)
                if ledger.busy:
                    self.ledgers.add(ledger)  # type: ignore[unreachable] # another thread
        return list(self.ledgers)

    def _waiting_letters(self) -> list[ReleaseSender]:
        """Senders with releases that are written when others were answered."""
        return [pool.release_sender for pool in self.engine.pools() if pool.release_sender.waits]

    def _has_releases(self) -> bool:
        return bool(self.engine.deferred) or any(
            pool.release_sender.outstanding for pool in self.engine.pools()
        )

    def _resolve_unknown(self) -> None:
        """Find out what has become of commands whose answers were lost, as soon as a server answers."""
        while self.unknown_outcomes and not self._doubts_retry.left():
            outcome = self.unknown_outcomes[0]
            try:
                outcome.settle()
                self._doubts_retry.succeeded()
            except CONNECTION_ERRORS as error:
                self.engine.log_once(error)
                self._doubts_retry.failed()
                return
            except ReplyError as error:
                self.engine.log_once(error)
                if self.engine.moved(outcome.ledger, error) is not None or self.engine.out_of_order(error):
                    self._doubts_retry.failed()
                    return
                outcome.give_up()
            except HeadwayError as error:
                log.warning(
                    "the background worker of %s could not resolve a lost reply: %s",
                    self.engine.address,
                    error,
                )
                outcome.give_up()
            except Exception:  # whatever it is, it must not be in the way of all others
                log.exception(
                    "the background worker of %s could not resolve a lost reply, and goes on",
                    self.engine.address,
                )
                outcome.give_up()
            with self._lock:
                # Another thread may have forgotten it meanwhile, to make room.
                if self.unknown_outcomes and self.unknown_outcomes[0] is outcome:
                    self.unknown_outcomes.popleft()

    def _run_retries(self) -> None:
        while self.retry_queue and not self._errands_retry.left():
            ledger = self.retry_queue[0].ledger
            some: list[Request] = []
            while self.retry_queue and self.retry_queue[0].ledger is ledger and len(some) < FEW:
                request = self.retry_queue.popleft()
                if not request.epoch or request.epoch == ledger.epoch:
                    some.append(request)
            if some:
                self._run_some(ledger, some)

    def _run_some(self, ledger: LedgerClient, some: list[Request]) -> None:
        """Retries to one ledger, together."""
        try:
            send_all(ledger, some)
            self._errands_retry.succeeded()
        except EngineUnavailable as error:
            self.engine.log_once(error)
            self._errands_retry.failed()
            for request in reversed(some):
                if not request.unknown and not isinstance(request, Release | Withdraw):
                    # To be asked again. What may have been applied must not be; the lease covers it. An end has been
                    # posted again: kept here as well, it would be two. So has a place given back.
                    request.done = request.orphan = False
                    request.error = None
                    self.retry_queue.appendleft(request)
        except (HeadwayError, *CONNECTION_ERRORS) as error:
            self.engine.log_once(error)

    def _ask_for_pauses(self, step: float) -> None:
        silent = set()
        for pause_state in list(self.cluster_pauses):
            now = self.engine.clock.now()
            pool = self.engine.pool_of(pause_state)
            if pool in silent or now - pause_state.visited <= step * 9e8:
                continue
            pause_state.visited = now
            pause_state.idle = 0 if pause_state.used else pause_state.idle + 1
            pause_state.used = False
            if pause_state.idle > UNUSED:
                # The next call of a key queries first.
                pause_state.known = False
                self.cluster_pauses.discard(pause_state)
                continue
            try:
                pause_state.query()
            except (HeadwayError, *CONNECTION_ERRORS) as error:
                silent.add(pool)
                self.engine.log_once(error)

    def _visit(self, ledgers: list[LedgerClient], step: float) -> None:
        silent = set()
        for ledger in ledgers:
            now = self.engine.clock.now()
            pool = self.engine.pool_of(ledger)
            if pool in silent or now - ledger.visited <= step * 9e8:
                continue
            try:
                self.visit(ledger, now)
            except (HeadwayError, *CONNECTION_ERRORS) as error:
                silent.add(pool)
                self.engine.log_once(error)
        for ledger in ledgers:
            # The ledger has not answered for so long that it may have given up the waiters in its queue. They request
            # again, and learn that it does not answer.
            if ledger.standing and ledger.registry.clock.now() - ledger.replied_at > ledger.registry.lease_ns:
                give_up(ledger)

    def visit(self, ledger: LedgerClient, now: int) -> None:
        """Send heartbeats for all waiters and leases there."""
        ledger.visited = now
        for acquire in list(ledger.sleepers):
            # Reserved, and its holder neither waited nor said an end: there is nothing left to move.
            if now > acquire.expires + ledger.moved(acquire):
                ledger.sleepers.discard(acquire)
        signs: list[Request] = []
        for pool, lease in list(ledger.leases.items()):
            if lease.dropped:
                # Its permit was dropped by a holder that lives: that is known here, so no waiter needs to
                # wait until the lease is over.
                ledger.leases.pop(pool, None)
                lease.end_dropped()
            elif lease.begin_renewal():
                signs.append(Renew(ledger, lease))
        try:
            for first in range(0, len(signs), FEW):
                send_all(ledger, signs[first : first + FEW])
            if ledger.standing or not signs:
                thread_batcher(ledger).send(PollQueue(ledger))
        finally:
            for sign in signs:
                if not sign.done:
                    sign.orphan = True
                    sign.unheard()

    # -- the listener ------------------------------------------------------------------------------------

    def _hear(self) -> None:
        engine, me = self.engine, threading.current_thread()
        while not self.stopped and self._listener is me:
            try:
                with engine.subscription() as subscription:
                    # What was said before we could hear it is asked for.
                    self.visit_all()
                    quiet = 0
                    while not self.stopped:
                        message = subscription.get_message(ignore_subscribe_messages=True, timeout=1.0)
                        if message is not None:
                            self._message(message)
                        quiet = 0 if message is not None or self._has_waiters() else quiet + 1
                        if quiet > LINGER and self._listener_may_end():
                            return
            except (HeadwayError, *CONNECTION_ERRORS) as error:
                if self.stopped:
                    return  # type: ignore[unreachable] # stopped by another thread
                # At the end of the process an embedded server ends first, which is no news.
                if engine.ending or self._listener_may_end():
                    return
                engine.log_once(error)
                time.sleep(1.0 if isinstance(error, Rejected) else 0.2)
            except Exception:
                log.exception("the listener of %s failed, and goes on", engine.address)
                time.sleep(0.5)

    def _has_waiters(self) -> bool:
        return bool(self.cluster_pauses) or any(ledger.busy for ledger in list(self.ledgers))

    def _listener_may_end(self) -> bool:
        """Whether there are no waiters and leases, so that the listener can end; a later waiter starts another."""
        with self._lock:
            # First the flag: a waiter that begins now either sees that there is no listener, or is seen here.
            listener, self._listener = self._listener, None
            if not self._has_waiters():
                return True
            self._listener = listener
            return False

    def visit_all(self) -> None:
        """Something may have been said that was not heard."""
        for ledger in list(self.ledgers):
            ledger.visited = 0
        for pause_state in list(self.cluster_pauses):
            pause_state.visited = 0
        self.wake()

    def _message(self, message: dict[str, Any]) -> None:
        data: bytes = message["data"]
        if message["channel"] == self.engine.news:
            for ledger in list(self.ledgers):
                if data in (ledger.keys[0], ledger.over):
                    ledger.visited = 0
            for pause_state in list(self.cluster_pauses):
                if data == pause_state.keys[0]:
                    pause_state.visited = 0
            self.wake()
            return
        (now,) = unpack_from("<d", data)
        epoch, records = data[8:32], read_numbers(data, 32)
        position = 0
        while position < len(records):
            ticket, width, slot = records[position : position + 3]
            end = position + 3 + int(width)
            self.engine.call(int(ticket), Wakeup(epoch, now, slot, records[position + 3 : end]))
            position = end


def send_all(ledger: LedgerClient, requests: list[Request]) -> None:
    """Send them together, and wait until all of them were answered: others may be in the queue before them."""
    batcher = thread_batcher(ledger)
    batcher.queue.extend(requests)
    while not all(request.done for request in requests):
        batcher.send(Request(ledger, NOTHING))


def give_up(ledger: LedgerClient) -> None:
    """The waiters of a ledger have to request again."""
    for acquire in list(ledger.standing.values()):
        acquire.void = True
        acquire.withdraw()
        acquire.wake()
