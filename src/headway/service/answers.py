"""Answers that are remembered, so that a command which is sent again is applied once.

A client whose connection broke does not know whether its command was carried out. It sends the command again with the
same id. The naive way is a table of ids, written when the command is done: two copies that are under way at once are
then both carried out. Here the first one leaves a future, and the others wait for that.

Only what has changed something is remembered. A command that was denied or refused changed nothing, so a copy of it is
decided anew. If the first one ended without an answer (its client went away while it waited in a queue), the next copy
takes its place.

The table is bounded in time, in number and in bytes: the oldest answers go first. An id belongs to one token and one
path; with another body it is refused.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sized
from hashlib import blake2b
from typing import Generic, TypeVar

from headway.service.problems import Problem

TTL = 600.0
MOST = 50_000
MOST_BYTES = 64 << 20

_T = TypeVar("_T", bound=Sized)
"""An answer; its length is the bytes that it takes."""

Scope = tuple[str, ...]
"""What an id belongs to: a token's name, a method, a path, and the id itself."""


def fingerprint(body: bytes) -> bytes:
    """A digest that two different bodies do not share."""
    return blake2b(body, digest_size=16).digest()


class _Pending(Generic[_T]):
    """A command that is being carried out."""

    __slots__ = ("body", "future")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()


class _NotAnsweredError(Exception):
    """The first copy went away before it had an answer: another one takes its place."""


class RememberedAnswers(Generic[_T]):
    """The answers to commands that had an id."""

    def __init__(
        self, now: Callable[[], float], ttl: float = TTL, most: int = MOST, most_bytes: int = MOST_BYTES
    ) -> None:
        self._now = now
        self._ttl = ttl
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._pending: dict[Scope, _Pending[_T]] = {}
        # In the order of their ends: the body's digest, when it ended, and the answer.
        self._done: OrderedDict[Scope, tuple[bytes, float, _T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._done)

    async def once(self, scope: Scope, body: bytes, make: Callable[[], Awaitable[_T]]) -> _T:
        """What `make` says, or has said before to the same command. What it raises is not remembered."""
        while True:
            self._drop_old()
            if scope in self._done:
                known, _, answer = self._done[scope]
                _check(known, body)
                return answer
            pending = self._pending.get(scope)
            if pending is None:
                return await self._first(scope, body, make)
            _check(pending.body, body)
            try:
                # A copy that goes away leaves the others alone.
                return await asyncio.shield(pending.future)
            except _NotAnsweredError:
                continue

    async def _first(self, scope: Scope, body: bytes, make: Callable[[], Awaitable[_T]]) -> _T:
        pending = self._pending[scope] = _Pending(body)
        try:
            answer = await make()
        except BaseException:
            del self._pending[scope]
            pending.future.set_exception(_NotAnsweredError())
            pending.future.exception()  # looked at: no copy may be waiting for it
            raise
        del self._pending[scope]
        self._done[scope] = (body, self._now(), answer)
        self._bytes += len(answer)
        self._drop_old()
        pending.future.set_result(answer)
        return answer

    def _drop_old(self) -> None:
        oldest = self._now() - self._ttl
        while self._done:
            _, at, answer = next(iter(self._done.values()))
            if len(self._done) <= self._most and self._bytes <= self._most_bytes and at > oldest:
                return
            self._done.popitem(last=False)
            self._bytes -= len(answer)


def _check(known: bytes, body: bytes) -> None:
    if known != body:
        detail = "this id was given to another command before: give each command an id of its own"
        raise Problem("command-id-reused", detail)
