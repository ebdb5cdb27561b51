"""Runs a fetch in the background, without making any caller wait for it.

A sync fetch runs in one daemon thread, wherever it is asked for: in a thread, or in a task, whose event loop must not
be blocked. The thread starts with the first fetch and ends with its prefetcher. Python cannot stop a function in a
thread. So when a fetch is given up (its deadline has passed) and still runs, its thread is left to itself and the
next fetch gets another one. If `MAX_HUNG` threads hang, no more are made, and fetching fails until one of them
returns: give the remote call a time-out of its own.

An async fetch is a task of the running event loop. A thread in which no loop runs hands it to the loop that asked
last, if that still runs; without any loop there is nothing that could run it, and the verb raises. A fetch that is
given up is cancelled.

What runs knows its prefetcher only weakly, so that a prefetcher that is dropped is not kept by its own fetch.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from headway.errors import InvalidUse
from headway.flows.drive import running_loop

if TYPE_CHECKING:
    import asyncio

    from headway.core.prefetch import Fetch, PrefetchLedger
    from headway.prefetch.prefetcher import Prefetcher

MAX_HUNG = 4
"""How many threads may hang in a fetch that was given up."""


class Fetching:
    """What a prefetcher asks of that which runs its fetch."""

    __slots__ = ()

    def prepare(self) -> None:
        """Raise where a fetch could not run."""

    def check_blocking(self) -> bool:
        """Whether this thread, which is about to wait, runs an event loop; raises if the fetch needs that one."""
        return running_loop() is not None

    def start(self, owner: Prefetcher, ledger: PrefetchLedger, fetch: Fetch) -> None:
        """Begin; the owner is told how it ended."""
        raise NotImplementedError

    def close(self) -> None:
        """End what runs."""

    def after_fork(self) -> None:
        """In a forked child: threads and loops are the parent's."""


class _Job:
    """One call of the fetch, and where its answer goes."""

    __slots__ = ("call", "fetch", "ledger", "owner")

    def __init__(self, call: Any, owner: Prefetcher, ledger: PrefetchLedger, fetch: Fetch) -> None:
        self.call = call
        self.owner = weakref.ref(owner)
        self.ledger = ledger
        self.fetch = fetch

    def answered(self, answer: Any) -> None:
        owner = self.owner()
        if owner is not None:
            owner._on_answer(self.ledger, self.fetch, answer)

    def failed(self, error: BaseException) -> None:
        owner = self.owner()
        if owner is not None:
            owner._on_error(self.ledger, self.fetch, error)

    def cancelled(self) -> None:
        owner = self.owner()
        if owner is not None:
            owner._on_cancelled(self.ledger, self.fetch)


class _Worker:
    """A daemon thread and what it works on."""

    __slots__ = ("busy", "inbox", "thread")

    def __init__(self) -> None:
        self.inbox: SimpleQueue[_Job | None] = SimpleQueue()
        self.busy = False
        self.thread = threading.Thread(target=self._work, name="headway prefetch", daemon=True)

    def _work(self) -> None:
        while (job := self.inbox.get()) is not None:
            try:
                answer = job.call(job.fetch.amount)
            except BaseException as error:  # noqa: BLE001 - whatever the user's function raises: it is passed on
                self.busy = False
                job.failed(error)
                del error
            else:
                # Before the answer is told: a waiter that it wakes may begin the next fetch at once.
                self.busy = False
                job.answered(answer)
                del answer
            # An idle thread refers to nothing, or what it refers to could not be reclaimed.
            del job


class ThreadFetching(Fetching):
    """A sync fetch."""

    __slots__ = ("_call", "_closed", "_hung", "_lock", "_worker")

    def __init__(self, call: Any) -> None:
        self._call = call
        self._closed = False
        self._worker: _Worker | None = None
        self._hung: list[_Worker] = []
        self._lock = threading.RLock()

    def start(self, owner: Prefetcher, ledger: PrefetchLedger, fetch: Fetch) -> None:
        job = _Job(self._call, owner, ledger, fetch)
        with self._lock:
            if self._closed:
                return
            worker = self._worker
            if worker is None or worker.busy:
                worker = self._new_worker(owner)
            worker.busy = True
            worker.inbox.put(job)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._dismiss()

    def _dismiss(self) -> None:
        """Let the thread end, when its call returns."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.inbox.put(None)

    def after_fork(self) -> None:
        self._lock = threading.RLock()
        self._worker = None
        self._hung = []

    def _new_worker(self, owner: Prefetcher) -> _Worker:
        self._hung = [worker for worker in self._hung if worker.busy]
        if self._worker is not None:
            if len(self._hung) >= MAX_HUNG:
                raise RuntimeError(f"{len(self._hung) + 1} earlier calls of fetch have not returned")
            self._hung.append(self._worker)
            self._dismiss()
        worker = _Worker()
        # Not a method of this object: that knows the fetch, which may know the prefetcher.
        weakref.finalize(owner, worker.inbox.put, None).atexit = False
        worker.thread.start()
        self._worker = worker
        return worker


class TaskFetching(Fetching):
    """An async fetch."""

    __slots__ = ("_call", "_closed", "_loop", "_task")

    def __init__(self, call: Any) -> None:
        self._call = call
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        loop = running_loop()
        if loop is not None:
            self._loop = loop
        elif self._loop is None or not self._loop.is_running():
            raise InvalidUse(
                "fetch is async, and no event loop runs that could run it",
                "await prefetcher.acquire_async()` in a task, or give a sync fetch: `Prefetcher(fetch)",
            )

    def check_blocking(self) -> bool:
        if running_loop() is not None:
            raise InvalidUse(
                "acquire() would stop the event loop in which its fetch runs",
                "await prefetcher.acquire_async()",
            )
        return False

    def start(self, owner: Prefetcher, ledger: PrefetchLedger, fetch: Fetch) -> None:
        job = _Job(self._call, owner, ledger, fetch)
        if running_loop() is not None:
            self._spawn(job)
        else:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._spawn, job)

    def close(self) -> None:
        self._closed = True
        self._cancel()

    def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is None or task.done():
            return
        loop = task.get_loop()
        if running_loop() is loop:
            task.cancel()
        else:
            # A loop that was closed has no task left to cancel.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

    def after_fork(self) -> None:
        self._loop = self._task = None

    def _spawn(self, job: _Job) -> None:
        if self._closed:
            return
        self._cancel()  # the one before was given up
        self._task = running_loop().create_task(_run(job), name="headway prefetch")


async def _run(job: _Job) -> None:
    import asyncio

    try:
        answer = await job.call(job.fetch.amount)
    except asyncio.CancelledError:
        job.cancelled()
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises: it is passed on
        job.failed(error)
    except BaseException as error:
        job.failed(error)
        raise
    else:
        job.answered(answer)
