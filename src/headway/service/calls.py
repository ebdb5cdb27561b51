"""A call of the API without its transport: a body in bytes in, an answer in bytes out.

The web framework and the hot path both answer by this, so that they cannot answer differently: what a body may be, what
an id is, what is remembered, which error is which answer, and what is counted, is said here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from headway.errors import HeadwayError
from headway.service.acquire import Decided, plain_grant, refusal
from headway.service.answers import fingerprint
from headway.service.api import Answer, Call, Endpoint
from headway.service.encoded import JSON, Encoded
from headway.service.messages import ENCODER, MAX_ID, Acquire
from headway.service.problems import Problem, problem_of
from headway.service.service import Service

if TYPE_CHECKING:
    from headway.service.config import LimitConfig
    from headway.service.standing import Standing

_NO_BODY = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What is raised for bytes that are no body; `ValidationError` is one of the first."""

UnlessGone = Callable[[Awaitable[Answer], bool], Awaitable[Answer]]
"""Waits for an answer until the client has gone; the second argument says whether the command has an id."""


class Asked(Struct, frozen=True, kw_only=True):
    """What a request says, beside its body: the name of its token, what it asks for, and under which id."""

    token: str
    method: str
    path: str
    params: Mapping[str, str]
    query: Mapping[str, str] = {}
    idempotency_key: str | None = None


class ApiCall:
    """One call of the table of calls, of one service."""

    def __init__(self, service: Service, endpoint: Endpoint) -> None:
        assert endpoint.handler is not None
        self.endpoint = endpoint
        self._service = service
        self._handler = endpoint.handler
        self._decode = None if endpoint.body is None else msgspec.json.Decoder(endpoint.body).decode
        self._decider = service.decider
        self.has_body = endpoint.body is not None
        self._answers = service.metrics.answers_of(endpoint.path)

    def decoded(self, raw: bytes) -> Any:
        """The body, checked; raises a `Problem`. Nothing is the same as {}."""
        assert self._decode is not None
        try:
            return self._decode(raw or b"{}")
        except msgspec.ValidationError as error:
            raise Problem("bad-request", str(error)) from None
        except _NO_BODY as error:
            raise Problem("bad-json", f"the body is no JSON: {error}") from None

    def id_of(self, asked: Asked, body: Any) -> str | None:
        """The id of a command, which its body or a header has; raises a `Problem`."""
        if not self.endpoint.command:
            return None
        header = asked.idempotency_key
        own: str | None = getattr(body, "id", None)
        if header is None:
            return own
        if own is not None and own != header:
            raise Problem(
                "bad-request", "the header Idempotency-Key and the id in the body differ", member="id"
            )
        if not 1 <= len(header) <= MAX_ID:
            raise Problem("bad-request", f"an Idempotency-Key has 1 to {MAX_ID} characters", member="id")
        return header

    async def carried_out(
        self, asked: Asked, raw: bytes, body: Any, unless_gone: UnlessGone | None = None
    ) -> Encoded:
        """The answer to a request. Raises `HeadwayError`."""
        call = Call(asked.params, asked.query, body)
        id = self.id_of(asked, body)

        async def carry_out() -> Encoded:
            work = self._handler(self._service, call)
            if isinstance(work, Answer):
                return encoded(work)
            if unless_gone is not None and self.endpoint.waits and may_wait(body):
                work = unless_gone(work, id is not None)
            return encoded(await work)

        if id is None:
            return await carry_out()
        scope = (asked.token, asked.method, asked.path, id)
        return await self._service.answers.once(scope, fingerprint(raw), carry_out)

    async def answered(self, work: Awaitable[Encoded]) -> Encoded:
        """What comes of `carried_out` and the like: an error is an answer too, and every answer is counted."""
        try:
            found = await work
        except HeadwayError as error:
            found = problem_of(error).encoded()
        self.count(found)
        return found

    def answered_at_once(self, params: Mapping[str, str], key: str | None, raw: bytes) -> Encoded | None:
        """The answer, where it needs nothing that has to be waited for; None where it does, or is unusual.

        A body that is not accepted is unusual, and so is a command with an id. Nothing has changed then.
        """
        body = None
        if self._decode is not None:
            try:
                body = self._decode(raw or b"{}")
            except _NO_BODY:
                return None
        if key is not None or (body is not None and body.id is not None):
            return None
        found: Encoded
        try:
            if type(body) is Acquire:
                decided = None if body.wait else self._decider.acquire_at_once(body)
                if decided is None:
                    return None
                if isinstance(decided, Decided):
                    found = Encoded(200, decided.head, JSON, ENCODER.encode(decided.grant))
                else:
                    found = problem_of(decided).encoded()
            else:
                work = self._handler(self._service, Call(params, {}, body))
                assert isinstance(work, Answer)
                found = encoded(work)
        except HeadwayError as error:
            found = problem_of(error).encoded()
        self._answers[found.status] = self._answers.get(found.status, 0) + 1
        return found

    def count(self, found: Encoded) -> None:
        self._answers[found.status] = self._answers.get(found.status, 0) + 1


def may_wait(body: Any) -> bool:
    """Whether a request may take long enough for its client to lose patience."""
    return any(take.wait for take in getattr(body, "requests", (body,)) if isinstance(take, Acquire))


def said_at_once(config: LimitConfig, found: Standing | None, reason: str | None) -> Encoded:
    """The answer to a request that was decided at once: granted, or (with a reason) not; None: there is no limit."""
    if reason is None or found is None:
        head = b"" if found is None else found.head
        return Encoded(200, head, JSON, ENCODER.encode(plain_grant(config.name, found)))
    said = refusal(config, found.retry_after, found, reason)
    return said.encoded() if isinstance(said, Problem) else Encoded(200, b"", JSON, ENCODER.encode(said))


def encoded(answer: Answer) -> Encoded:
    """An answer as it is sent."""
    body = answer.body if isinstance(answer.body, bytes) else ENCODER.encode(answer.body)
    return Encoded(answer.status, answer.head, answer.media_type, body)
