"""The four ends of a permit, and which of them an exception proves.

A permit that is completed too early breaks the promise to the remote; one that is abandoned needlessly is out
for `max_transit` and costs throughput. So an exception is read for what it *proves*:

- an answer arrived (`answered`): it carries a response, or it is one of the errors that come from looking at an
  answer, such as a `ValueError` of a parser. Completed.
- nothing was sent (`not_sent`): the connection was refused, the name did not resolve, or the client's own pool had no
  connection in time. Cancelled.
- anything else (time-outs, lost connections, cancellation, Ctrl-C) proves nothing. Abandoned.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from enum import IntEnum

from headway.errors import InvalidArgument


class Outcome(IntEnum):
    """How a permit ended; the numbers are also what a shared ledger is told.

    >>> Outcome.CANCEL.verb, Outcome.CANCEL.event
    ('cancel', 'cancelled')
    """

    COMPLETE = 1
    CANCEL = 2
    ABANDON = 3
    SETTLE = 4

    @property
    def verb(self) -> str:
        """The method of a permit that ends it so, and what `permit.ended` says."""
        return self.name.lower()

    @property
    def event(self) -> str:
        """The kind of the event that tells of it."""
        return _EVENTS[self]


_EVENTS = {
    Outcome.COMPLETE: "completed",
    Outcome.CANCEL: "cancelled",
    Outcome.ABANDON: "abandoned",
    Outcome.SETTLE: "settled",
}

Proof = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool] | None
"""Exception types, or a function that is asked; None for the default."""

_AFTER_AN_ANSWER = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError)
_BEFORE_SENDING = (ConnectionRefusedError, socket.gaierror)
# By name, as no HTTP library is imported here. Of aiohttp, whose resolvers have errors of their own; and of httpx and
# urllib3, where the pool of connections was exhausted.
_BEFORE_SENDING_BY_NAME = frozenset({"ClientConnectorDNSError", "PoolTimeout", "EmptyPoolError"})


def shows_answer(error: BaseException) -> bool:
    """Whether the error proves that an answer was there.

    >>> shows_answer(KeyError("items")), shows_answer(TimeoutError())
    (True, False)
    """
    if getattr(error, "response", None) is not None or _tells_status(error):
        return True
    if isinstance(error, OSError):
        # A certificate that is refused is a ValueError too. Of these only a parser's (requests) shows an answer.
        return any(kind.__name__ == "JSONDecodeError" for kind in type(error).__mro__)
    return isinstance(error, _AFTER_AN_ANSWER)


def _tells_status(error: BaseException) -> bool:
    """Whether it is itself the answer (urllib), or quotes its status and headers (aiohttp)."""
    status = getattr(error, "status", None)
    return isinstance(status, int) and 100 <= status <= 599 and getattr(error, "headers", None) is not None


def shows_nothing_sent(error: BaseException) -> bool:
    """Whether the error, or the one that directly caused it, proves that nothing left this machine.

    HTTP libraries wrap the operating system's error: as `__cause__`, as `reason` (urllib), `os_error` (aiohttp)
    or as their first argument (requests). Where a name has several addresses, all of them must have failed so
    (anyio, below httpx, gives a group as the cause of an OSError). `__context__` is not followed: an earlier attempt
    that was refused proves nothing about the one that failed.

    >>> shows_nothing_sent(ConnectionRefusedError()), shows_nothing_sent(ConnectionResetError())
    (True, False)
    """
    seen: set[int] = set()
    current: object = error
    while isinstance(current, BaseException) and id(current) not in seen:
        if isinstance(current, _BEFORE_SENDING) or type(current).__name__ in _BEFORE_SENDING_BY_NAME:
            return True
        if isinstance(current, OSError) and isinstance(current.__cause__, BaseExceptionGroup):
            return all(shows_nothing_sent(attempt) for attempt in current.__cause__.exceptions)
        seen.add(id(current))
        first = current.args[0] if current.args else None
        wrapped = (
            current.__cause__,
            getattr(current, "os_error", None),
            getattr(current, "reason", None),
            first,
        )
        current = next((inner for inner in wrapped if isinstance(inner, BaseException)), None)
    return False


def _proves(proof: Proof, default: Callable[[BaseException], bool], error: BaseException) -> bool:
    if proof is None:
        return default(error)
    if isinstance(proof, type | tuple):
        return isinstance(error, proof)
    return bool(proof(error))


def outcome_of(error: BaseException | None, answered: Proof = None, not_sent: Proof = None) -> Outcome:
    """What the exception of a call proves: that it is complete, that it was never sent, or nothing.

    >>> [outcome_of(error).verb for error in (None, IndexError(), ConnectionRefusedError(), TimeoutError())]
    ['complete', 'complete', 'cancel', 'abandon']
    """
    if error is None or _proves(answered, shows_answer, error):
        return Outcome.COMPLETE
    return Outcome.CANCEL if _proves(not_sent, shows_nothing_sent, error) else Outcome.ABANDON


def check_proof(argument: str, proof: object) -> None:
    """Refuse what cannot be asked, before anything is limited by it."""
    types = proof if isinstance(proof, tuple) else (proof,)
    if proof is None or all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in types):
        return
    if isinstance(proof, type | tuple) or not callable(proof):
        raise InvalidArgument(argument, proof, "exception types, or a function of the exception")
