"""What has to happen while nobody asks: signs of life, messages, letters that could not be written.

Two threads of a process look after an engine, from the first moment somebody has to wait or holds something under a
lease,
until nothing is left to look after. The *keeper* visits every account in which somebody stands, sleeps or holds, three
times in a lease: it renews leases, asks after those who stand (a message may have been lost) and learns of pauses and
losses; in a cluster it also asks whether limiters whose keys are used are paused (`halts.py`). The *listener* has the
one subscription of the process and calls those whose turn has come.

Threads, also for asyncio: a holder whose event loop is busy lives all the same.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from struct import unpack_from
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from headway.engines.redis.ears import Rejected
from headway.engines.redis.halts import UNUSED, Halt
from headway.engines.redis.lanes import MOST, lane_of_threads
from headway.engines.redis.requests import NOTHING, Call, End, Poll, Renew, Request, Withdraw
from headway.engines.redis.wires import TROUBLE
from headway.engines.redis.words import read_numbers
from headway.errors import EngineUnavailable, HeadwayError

if TYPE_CHECKING:
    from headway.engines.redis.account import Account
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.lanes import Doubt

log = logging.getLogger("headway")

SOON = 0.001
ALERT = 50
"""Rounds of a millisecond, after the last end that was left to travel with a question."""
CALM = 10
"""Rounds of 20 ms without letters, after which it sleeps until the next visits, or until it is woken."""
DOUBTFUL = 0.5
"""Seconds until it is tried again to find out what has become of a command, at most."""
LINGER = 20
"""Rounds without anything to do after which the threads end."""
MOST_DOUBTS = 1024
"""Commands without an answer that are remembered; what older ones were granted comes back with its lease."""


class Bell:
    """An event for one who waits. That of `threading` has a lock inside, which a signal's handler that raises at the
    wrong moment leaves taken: then nobody could be woken any more, or even try to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is set; not asked before, as another thread may do so
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Until it is set, for so long at most; when we know of it, it is not set any more."""
        return self._lock.acquire(timeout=seconds)


class Keeper:
    """The two threads of an engine, started when they are needed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.accounts: set[Account] = set()
        self.halts: set[Halt] = set()
        self.errands: deque[Request] = deque()
        # When errands may be tried again, after one was refused.
        self._after = 0
        self.doubts: deque[Doubt] = deque(maxlen=MOST_DOUBTS)
        # The collector may come while we have it, and end somebody who has a letter to post.
        self._lock = threading.RLock()
        self._wake = Bell()
        self._thread: threading.Thread | None = None
        self._listener: threading.Thread | None = None
        self.stopped = False
        self._farewell_planned = False
        # Whether it has to be woken to be there in a millisecond, or at all before the next visits.
        self._resting = self._drowsy = True
        # When doubts may be looked at again, after nobody answered.
        self._doubts_after = 0

    def look_after(self, account: Account) -> None:
        """Visit this account from now on, for as long as somebody waits or holds there."""
        if account not in self.accounts or self._thread is None:
            with self._lock:
                self.accounts.add(account)
                self._start()

    def follow(self, halt: Halt) -> None:
        """Ask whether this limiter is paused, for as long as its keys are used."""
        with self._lock:
            self.halts.add(halt)
            self._start()

    def tend(self) -> None:
        """There are letters: their answers are looked for from now on, as not all of them may arrive."""
        if self._thread is None:
            with self._lock:
                self._start()
        elif self._drowsy:
            self._drowsy = False
            self._wake.set()

    def soon(self) -> None:
        """There are ends that may have to be posted, in a millisecond."""
        self.tend()
        if self._resting:
            self._wake.set()

    def later(self, request: Request) -> None:
        """Ask for something that nobody waits for the answer of."""
        with self._lock:
            self.errands.append(request)
            self._start()
        self._wake.set()

    def clear_up(self, doubt: Doubt) -> None:
        """Find out whether a command was applied."""
        with self._lock:
            self.doubts.append(doubt)
            self._start()
        self._wake.set()

    def _start(self) -> None:
        if self._thread is None and not self.stopped:
            thread = threading.Thread(target=self._keep, name="headway keeper", daemon=True)
            if self._thread is None:  # the collector may have come, and somebody with it
                self._thread = thread
                if not self._started(thread):
                    self._thread = None
            if not self._farewell_planned:
                self._farewell_planned = True
                self.engine.plan_farewell()

    def listen(self) -> None:
        """Make sure that messages are heard; what is said before the subscription stands is asked for."""
        if self._listener is None:
            with self._lock:
                if self._listener is None and not self.stopped:  # type: ignore[redundant-expr] # by another thread
                    self._listener = threading.Thread(target=self._hear, name="headway listener", daemon=True)
                    if not self._started(self._listener):
                        self._listener = None

    def _started(self, thread: threading.Thread) -> bool:
        """A process that may have no more threads, or ends, asks and posts all the same; the next one tries again."""
        try:
            thread.start()
        except RuntimeError as error:
            self.engine.complain(error)
            return False
        return True

    def wake(self) -> None:
        self._wake.set()

    # -- the keeper --------------------------------------------------------------------------------------

    def _keep(self) -> None:
        idle = alert = after = calm = 0
        step = self.engine.lease_ns / 3e9
        while True:
            alert = alert - 1 if not self.engine.deferred else ALERT
            self._resting = alert <= 0
            # First the flag: whoever has a letter after we have looked for one wakes us.
            self._drowsy = calm >= CALM and alert <= 0
            if alert <= 0 and self._letters():
                calm, self._drowsy = 0, False
            pause = SOON if alert > 0 else 0.02 if calm < CALM else step
            woken = self._wake.wait(min(pause, DOUBTFUL) if self.doubts else pause)
            self._resting = self._drowsy = False
            calm = 0 if woken else calm + 1
            if woken and self.engine.deferred and self.engine.clock.now() < after:
                alert = ALERT  # ends come one soon after the other: to be woken for each would cost more than to look
            self._post_ends()
            if alert > 0 and not woken and self.engine.clock.now() < after:
                continue
            after = self.engine.clock.now() + 20_000_000
            with self._lock:
                accounts = self._busy_accounts()
                anything = accounts or self.halts or self.errands or self.doubts or self._letters()
                idle = 0 if anything or calm < CALM else idle + 1
                if idle > LINGER or self.stopped:
                    self._thread = None
                    # Whoever posts a letter looks for the thread afterwards, and we look for letters.
                    if self.stopped or not self._letters():
                        return
                    self._thread = threading.current_thread()
            try:
                for place in self.engine.places():
                    place.posts.tend()
                self._clear_up()
                self._run_errands()
                self._ask_for_pauses(step)
                self._visit(accounts, step)
            except Exception:
                log.exception("the keeper of %s failed, and goes on", self.engine.address)

    def _post_ends(self) -> None:
        """What has not travelled with a question by now."""
        try:
            for account in list(self.engine.deferred):
                self.engine.flush(account)
        except Exception:
            log.exception("the keeper of %s failed, and goes on", self.engine.address)

    def _busy_accounts(self) -> list[Account]:
        for account in list(self.accounts):
            if not account.busy:
                # Whoever begins to wait or hold there now either sees that it is not looked after, or is seen here.
                self.accounts.discard(account)
                if account.busy:
                    self.accounts.add(account)  # type: ignore[unreachable] # another thread
        return list(self.accounts)

    def _letters(self) -> bool:
        return bool(self.engine.deferred) or any(place.posts.unheard for place in self.engine.places())

    def _clear_up(self) -> None:
        """Find out what has become of commands whose answers were lost, as soon as somebody answers."""
        while self.doubts and self.engine.clock.now() >= self._doubts_after:
            doubt = self.doubts[0]
            try:
                doubt.settle()
            except TROUBLE as error:
                self.engine.complain(error)
                self._doubts_after = self.engine.clock.now() + int(DOUBTFUL * 1e9)
                return
            except ReplyError as error:
                self.engine.complain(error)
                if self.engine.moved(doubt.account, error) is not None or self.engine.out_of_order(error):
                    return
            except HeadwayError as error:
                log.warning("the keeper of %s could not clear up: %s", self.engine.address, error)
            except Exception:  # whatever it is, it must not be in the way of all others
                log.exception("the keeper of %s could not clear up, and goes on", self.engine.address)
            self.doubts.popleft()

    def _run_errands(self) -> None:
        while self.errands and self.engine.clock.now() >= self._after:
            request = self.errands[0]
            if not request.epoch or request.epoch == request.account.epoch:
                try:
                    lane_of_threads(request.account).ask(request)
                except EngineUnavailable as error:
                    self.engine.complain(error)
                    self._after = self.engine.clock.now() + self.engine.lease_ns // 3
                    if not request.doubtful and not isinstance(request, End | Withdraw):
                        # To be asked again. What may have been applied must not be; the lease covers it. An end has
                        # been posted again: kept here as well, it would be two. So has a place given back.
                        request.done = request.orphan = False
                        request.error = None
                        return
                except (HeadwayError, *TROUBLE) as error:
                    self.engine.complain(error)
            self.errands.popleft()

    def _ask_for_pauses(self, step: float) -> None:
        silent = set()
        for halt in list(self.halts):
            now = self.engine.clock.now()
            place = self.engine.place_of(halt)
            if place in silent or now - halt.visited <= step * 9e8:
                continue
            halt.visited = now
            halt.idle = 0 if halt.used else halt.idle + 1
            halt.used = False
            if halt.idle > UNUSED:
                # Whoever uses it next asks first.
                halt.known = False
                self.halts.discard(halt)
                continue
            try:
                halt.ask()
            except (HeadwayError, *TROUBLE) as error:
                silent.add(place)
                self.engine.complain(error)

    def _visit(self, accounts: list[Account], step: float) -> None:
        silent = set()
        for account in accounts:
            now = self.engine.clock.now()
            place = self.engine.place_of(account)
            if place in silent or now - account.visited <= step * 9e8:
                continue
            try:
                self.visit(account, now)
            except (HeadwayError, *TROUBLE) as error:
                silent.add(place)
                self.engine.complain(error)
        for account in accounts:
            # Nobody has heard of the ledger for so long that it may have given up those who stand in its queue. They
            # ask again, and hear that it does not answer.
            if account.standing and account.spec.clock.now() - account.heard > account.spec.lease_ns:
                for ask in list(account.standing.values()):
                    ask.void = True
                    ask.withdraw()
                    ask.ring()

    def visit(self, account: Account, now: int) -> None:
        """Give signs of life for everybody who waits or holds there."""
        account.visited = now
        for ask in list(account.sleepers):
            # Reserved, and its holder neither waited nor said an end: there is nothing left to move.
            if now > ask.expires + account.moved(ask):
                account.sleepers.discard(ask)
        lane = lane_of_threads(account)
        signs = []
        for place, lease in list(account.leases.items()):
            if lease.dropped:
                # Its permit was dropped by a holder that lives: that is known here, so nobody needs to wait for the
                # end.
                account.leases.pop(place, None)
                lease.end_dropped()
            elif lease.begin_renewal():
                signs.append(Renew(account, lease))
        try:
            for first in range(0, len(signs), MOST - 1):
                lane.queue.extend(signs[first : first + MOST - 1])
                lane.ask(Request(account, NOTHING))
            if account.standing or not signs:
                lane.ask(Poll(account))
        finally:
            for sign in signs:
                if not sign.done:
                    sign.orphan = True
                    sign.unheard()

    # -- the listener ------------------------------------------------------------------------------------

    def _hear(self) -> None:
        engine = self.engine
        while not self.stopped:
            try:
                with engine.subscription() as subscription:
                    # What was said before we could hear it is asked for.
                    self.visit_all()
                    quiet = 0
                    while not self.stopped:
                        message = subscription.get_message(ignore_subscribe_messages=True, timeout=1.0)
                        if message is not None:
                            self._message(message)
                        quiet = 0 if message is not None or self._anybody() else quiet + 1
                        if quiet > LINGER and self._nobody_listens():
                            return
            except (HeadwayError, *TROUBLE) as error:
                if self.stopped:
                    return  # type: ignore[unreachable] # stopped by another thread
                if self._nobody_listens():
                    return
                engine.complain(error)
                time.sleep(1.0 if isinstance(error, Rejected) else 0.2)
            except Exception:
                log.exception("the listener of %s failed, and goes on", engine.address)
                time.sleep(0.5)

    def _anybody(self) -> bool:
        return bool(self.halts) or any(account.busy for account in list(self.accounts))

    def _nobody_listens(self) -> bool:
        """Whether nobody waits or holds, so that the listener can end; who comes later starts another."""
        with self._lock:
            # First the flag: whoever begins to wait now either sees that nobody listens, or is seen here.
            listener, self._listener = self._listener, None
            if not self._anybody():
                return True
            self._listener = listener
            return False

    def visit_all(self) -> None:
        """Something may have been said that was not heard."""
        for account in list(self.accounts):
            account.visited = 0
        for halt in list(self.halts):
            halt.visited = 0
        self._wake.set()

    def _message(self, message: dict[str, Any]) -> None:
        data: bytes = message["data"]
        if message["channel"] == self.engine.news:
            for account in list(self.accounts):
                if data in (account.keys[0], account.over):
                    account.visited = 0
            for halt in list(self.halts):
                if data == halt.keys[0]:
                    halt.visited = 0
            self._wake.set()
            return
        ticket, width = unpack_from("<dd", data)
        if not width:
            self.engine.call(int(ticket), None)
            return
        epoch, end = data[16:40], 56 + 8 * int(width)
        now, slot, *marks = read_numbers(data[40:end])
        self.engine.call(int(ticket), Call(epoch, now, slot, tuple(marks)))
