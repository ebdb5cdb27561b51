"""`limiter.hold(...)`: a permit around a block, for threads and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.outcome import Proof, check_proof

if TYPE_CHECKING:
    from headway.limiter.local import LocalLimiter
    from headway.limiter.permits import Permit
    from headway.limiter.request_input import Cost, Key, Timeout


class Hold:
    """Takes a permit when the block is entered and ends it, by how the block ended, when it is left.

    >>> from headway import Limiter
    >>> limiter = Limiter("2 concurrent")
    >>> with limiter.hold() as permit:
    ...     limiter.peek().remaining
    1
    >>> limiter.peek().remaining
    2
    """

    __slots__ = ("_answered", "_arguments", "_limiter", "_not_sent", "_permit")

    def __init__(
        self, limiter: LocalLimiter, key: Key, cost: Cost, timeout: Timeout, answered: Proof, not_sent: Proof
    ) -> None:
        check_proof("answered", answered)
        check_proof("not_sent", not_sent)
        self._limiter = limiter
        self._arguments: dict[str, Any] = {"key": key, "cost": cost, "timeout": timeout}
        self._answered = answered
        self._not_sent = not_sent
        self._permit: Permit | None = None

    def __enter__(self) -> Permit:
        self._permit = self._limiter.acquire(**self._arguments)
        return self._permit

    async def __aenter__(self) -> Permit:
        self._permit = await self._limiter.acquire_async(**self._arguments)
        return self._permit

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        permit, self._permit = self._permit, None
        if permit is None:
            return
        try:
            permit._finish(error, self._answered, self._not_sent)
        except BaseException:
            # The function that says what the error proves failed itself: the outcome is unknown.
            if permit.ended is None:
                permit.abandon()
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)
