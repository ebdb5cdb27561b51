"""What has to happen while nobody asks: signs of life, messages, letters that could not be written.

Two threads of a process look after an engine, from the first moment somebody has to wait or holds something under a lease,
until nothing is left to look after. The *keeper* visits every account in which somebody stands, sleeps or holds, three
times in a lease: it renews leases, asks after those who stand (a message may have been lost) and learns of pauses and
losses. The *listener* has the one subscription of the process and calls those whose turn has come.

Threads, also for asyncio: a holder whose event loop is busy lives all the same.
"""

from __future__ import annotations

import logging
import threading
from struct import unpack_from
from typing import TYPE_CHECKING, Any

from headway.engines.redis.requests import ABANDON, Call, End, Poll, Renew, Request
from headway.engines.redis.wires import TROUBLE
from headway.engines.redis.words import read_numbers
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.engines.redis.account import Account
    from headway.engines.redis.engine import Engine

log = logging.getLogger("headway")

SOON = 0.001
ALERT = 50
"""Rounds of a millisecond, after the last end that was left to travel with a question."""
LINGER = 20
"""Rounds without anything to do after which the threads end."""


class Keeper:
    """The two threads of an engine, started when they are needed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.accounts: set[Account] = set()
        self.errands: list[Request] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._listener: threading.Thread | None = None
        self._subscribed = threading.Event()
        self.stopped = False
        # Whether it has to be woken to be there in a millisecond.
        self._resting = True

    def look_after(self, account: Account) -> None:
        """Visit this account from now on, for as long as somebody waits or holds there."""
        if account not in self.accounts or self._thread is None:
            with self._lock:
                self.accounts.add(account)
                self._start()

    def tend(self) -> None:
        """There are letters."""
        if self._thread is None:
            with self._lock:
                self._start()

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

    def _start(self) -> None:
        if self._thread is None and not self.stopped:
            self._thread = threading.Thread(target=self._keep, name="headway keeper", daemon=True)
            self._thread.start()

    def listen(self) -> None:
        """Make sure that messages are heard; the first one waits until the server has confirmed it."""
        if self._listener is None:
            with self._lock:
                if self._listener is None and not self.stopped:
                    self._listener = threading.Thread(target=self._hear, name="headway listener", daemon=True)
                    self._listener.start()

    def wake(self) -> None:
        self._wake.set()

    # -- the keeper --------------------------------------------------------------------------------------

    def _keep(self) -> None:
        idle = alert = after = 0
        step = self.engine.lease_ns / 3e9
        while True:
            quick = any(place.posts.unheard for place in self.engine.places())
            alert = alert - 1 if not self.engine.deferred else ALERT
            self._resting = alert <= 0
            self._wake.wait(SOON if alert > 0 else 0.02 if quick else step)
            self._wake.clear()
            self._resting = False
            for account in list(self.engine.deferred):
                self.engine.flush(account)
            if alert > 0 and not self.errands and self.engine.clock.now() < after:
                continue
            after = self.engine.clock.now() + 20_000_000
            with self._lock:
                errands, self.errands = self.errands, []
                accounts = [account for account in self.accounts if account.busy]
                self.accounts = set(accounts)
                idle = 0 if accounts or errands or quick else idle + 1
                if idle > LINGER or self.stopped:
                    self._thread = None
                    return
            try:
                for place in self.engine.places():
                    place.posts.tend()
                for request in errands:
                    if not request.epoch or request.epoch == request.account.epoch:
                        self.engine.lane(request.account).ask(request)
                now = self.engine.clock.now()
                for account in accounts:
                    if now - account.visited > step * 9e8:
                        self.visit(account, now)
            except (HeadwayError, *TROUBLE) as error:
                self.engine.complain(error)
            except Exception:
                log.exception("the keeper of %s failed, and goes on", self.engine.address)

    def visit(self, account: Account, now: int) -> None:
        """Give signs of life for everybody who waits or holds there."""
        account.visited = now
        lane = self.engine.lane(account)
        for place, lease in list(account.leases.items()):
            if lease.dropped:
                # Its permit was dropped by a holder that lives: that is known here, so nobody needs to wait for the end.
                del account.leases[place]
                account.post(End(lease.ask, ABANDON))
            else:
                lane.queue.append(Renew(account, lease))
        lane.ask(Poll(account))

    # -- the listener ------------------------------------------------------------------------------------

    def _hear(self) -> None:
        engine = self.engine
        while not self.stopped:
            try:
                with engine.subscription() as subscription:
                    # What was said before we could hear it is asked for.
                    self._visit_all()
                    while not self.stopped:
                        message = subscription.get_message(ignore_subscribe_messages=True, timeout=1.0)
                        if message is not None:
                            self._message(message)
            except (HeadwayError, *TROUBLE) as error:
                if self.stopped:
                    return
                engine.complain(error)
                self._wake_event_wait(0.2)
            except Exception:
                log.exception("the listener of %s failed, and goes on", engine.address)
                self._wake_event_wait(0.5)

    def _wake_event_wait(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def _visit_all(self) -> None:
        for account in list(self.accounts):
            account.visited = 0
        self._wake.set()

    def _message(self, message: dict[str, Any]) -> None:
        data: bytes = message["data"]
        if message["channel"] == self.engine.news:
            for account in list(self.accounts):
                if account.keys[0] == data:
                    account.visited = 0
            self._wake.set()
            return
        ticket, width = unpack_from("<dd", data)
        epoch, end = data[16:40], 56 + 8 * int(width)
        now, slot, *marks = read_numbers(data[40:end])
        self.engine.call(int(ticket), Call(epoch, now, slot, tuple(marks)))
