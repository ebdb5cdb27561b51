"""Signal handlers that raise, and what they may come between.

Ctrl-C is one; job runners end a job that takes too long in the same way. Python calls the handler in the main thread,
when a function begins, when a loop jumps back, and after a call into C has returned. So an exception may come between
any two calls, and also between a lock that was taken and the line that notes it. What it cannot come between are plain
reads and stores of variables and attributes, and what happens inside one call into C.

`with lock:` is safe: no handler runs between taking the lock and entering the block. Where the result of a lock is
needed (it was not free, or the wait timed out), `take_lock` notes it inside the very call that takes the lock. Where
`with` would be the slowest part (interpreted, it costs twice as much as the two calls), a loop does the same:

    for _ in taking(lock):
        try:
            return ...                      # the lock is held
        finally:
            lock.release()

The step of a `for` loop is one call into C, and no handler runs between it and the body.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType


def take_lock(lock: Any, mine: list[bool], timeout: float | None = None) -> bool:
    """Take a lock if it is free (or wait for it `timeout` seconds), and append to `mine` whether that succeeded.

    The caller has `mine` before the lock is taken, so that a `finally` knows whether there is a lock to release:

    >>> import threading
    >>> lock, mine = threading.Lock(), []
    >>> try:
    ...     taken = take_lock(lock, mine)
    ... finally:
    ...     if mine and mine[-1]:
    ...         lock.release()
    >>> taken, lock.locked()
    (True, False)
    """
    # One call into C takes the lock and appends the result: nothing can come between.
    if timeout is None:
        mine.extend(map(lock.acquire, (False,)))
    else:
        mine.extend(map(lock.acquire, (True,), (timeout,)))
    return mine[-1]


def taking(lock: Any) -> Iterator[bool]:
    """An iterator whose every step waits for the lock and takes it; make it once, and leave the loop in its body.

    >>> import threading
    >>> lock = threading.RLock()
    >>> for mine in taking(lock):
    ...     break
    >>> lock.release()
    """
    return iter(lock.acquire, None)


def raised_by_signal(error: BaseException) -> bool:
    """Whether a signal handler raised it: the exception is then meant for the program, wherever it arrived.

    >>> raised_by_signal(ValueError())
    False
    """
    handlers = set(_handler_codes())
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _handler_codes() -> Iterable[CodeType]:
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if code is not None:
            yield code
