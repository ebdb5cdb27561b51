"""Which requests are hot, and how they are answered without the web framework.

The hot calls are those that a client makes for each unit of its work: take a permit, end it, renew it; and `/healthz`,
which proxies ask all the time. They are answered by the same functions that the web framework answers them by
(`headway.service.calls`). What is saved is the way there: no task, no messages of ASGI, no routing.

The usual `POST /v1/acquire` does not even come that far: `headway.service.quick` answers it in one compiled step, where
there is one.

Here is only the plainest form of a request: a known path, one `Host` that is accepted, a token that may do it, a body
that is JSON and says so. Whatever else a request has (an `Origin`, a query, a body without a type, a token with too low
a role, no JSON, a `wait`) goes to the application, which knows all the rules. So this file may miss a request that
could be hot, and can never answer one otherwise than the application.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Coroutine
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headway._pure import pure_wanted
from headway.engines.memory.store import ATOMIC
from headway.service.api import ENDPOINTS
from headway.service.calls import ApiCall, Asked
from headway.service.encoded import JSON, PROBLEM_JSON, Encoded
from headway.service.hosts import HostGuard
from headway.service.messages import Acquire
from headway.service.problems import Problem
from headway.service.service import Service

if TYPE_CHECKING:
    from headway.service.quick import QuickAcquires

_log = logging.getLogger("headway")

MOST_HOSTS: Final = 64
"""How many values of `Host` are remembered as accepted."""
MOST_HEADS: Final = 1024
"""How many heads are remembered with what was read from them."""
LONGEST_HEAD: Final = 2048

_PERMIT: Final = re.compile(rb"/v1/permits/([A-Za-z0-9_-]{1,128})/(release|renew)")
_FACTS: Final = frozenset({b"host", b"content-type", b"authorization", b"idempotency-key"})
_UNUSUAL: Final = frozenset({b"origin", b"expect", b"transfer-encoding", b"upgrade"})
_TYPES: Final = {JSON: JSON.encode(), PROBLEM_JSON: PROBLEM_JSON.encode()}
_CLOSE: Final = b"connection: close\r\n"

Facts = dict[bytes, bytes]
Work = Coroutine[Any, Any, Encoded]


class HotCall:
    """A hot call, and what its path names."""

    __slots__ = ("call", "method", "params", "path", "role")

    def __init__(self, call: ApiCall, path: str, params: dict[str, str]) -> None:
        self.call = call
        self.method = call.endpoint.method.encode()
        self.role = call.endpoint.role
        self.path = path
        self.params = params


class KnownHead:
    """What was read from a head before: the call, its facts, and the length of the body that follows.

    Clients send the same head again and again, so most heads need not be parsed: the parser has read the very same
    bytes before, and the protocol sees to it that they stand where a request begins.
    """

    __slots__ = ("facts", "hot", "length")

    def __init__(self, hot: HotCall, facts: Facts, length: int) -> None:
        self.hot = hot
        self.facts = facts
        self.length = length


class HotCalls:
    """The hot calls of a service."""

    def __init__(self, service: Service, origins: Collection[str] = ()) -> None:
        self._service = service
        self._guard = HostGuard(None, service.host, origins)
        self._hosts: set[bytes] = set()
        self.heads: dict[bytes, KnownHead] = {}
        self._default_headers: list[tuple[bytes, bytes]] | None = None
        self._default_lines = b""
        calls = {
            endpoint.path: ApiCall(service, endpoint)
            for endpoint in ENDPOINTS
            if endpoint.path in ("/v1/acquire", "/healthz") or endpoint.path.startswith("/v1/permits/")
        }
        self._of_permits = {
            b"release": calls["/v1/permits/{id}/release"],
            b"renew": calls["/v1/permits/{id}/renew"],
        }
        self._plain = {path.encode(): HotCall(calls[path], path, {}) for path in ("/v1/acquire", "/healthz")}
        self._acquire = self._plain[b"/v1/acquire"]
        self.quick = quick_acquires(self, service, self._acquire.call)

    @property
    def max_body(self) -> int:
        return self._service.config.server.max_body

    def default_lines(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """The headers that the server gives to every answer. Their list is a new one each second, with the date."""
        if headers is not self._default_headers:
            self._default_headers = headers
            self._default_lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])
        return self._default_lines

    def find(self, method: bytes, url: bytes) -> HotCall | None:
        """The call that a request names; None for all that are not hot."""
        found = self._plain.get(url)
        if found is None:
            match = _PERMIT.fullmatch(url)
            if match is None:
                return None
            found = HotCall(self._of_permits[match[2]], url.decode(), {"id": match[1].decode()})
        return found if found.method == method else None

    def remember(self, head: bytes, read: KnownHead) -> None:
        """Note what the parser has read from the head of a request that was answered."""
        if len(head) <= LONGEST_HEAD:
            if len(self.heads) >= MOST_HEADS:
                self.heads.clear()
            self.heads[head] = read

    def facts(self, hot: HotCall, headers: list[tuple[bytes, bytes]]) -> Facts | None:
        """What a head says that counts here; None where the application has to answer."""
        facts: Facts = {}
        for name, value in headers:
            if name in _FACTS:
                if name in facts:
                    return None
                facts[name] = value
            elif name in _UNUSUAL or (name == b"content-length" and not hot.call.has_body):
                return None
        return facts

    def acquire_length(self, head: bytes) -> int | None:
        """How long the body is behind a known head of a plain `POST /v1/acquire` that is admitted; None of others."""
        known = self.heads.get(head)
        if known is None or known.hot is not self._acquire:
            return None
        facts = known.facts
        if b"idempotency-key" in facts or facts.get(b"content-type") != b"application/json":
            return None
        return None if self._admitted(known.hot, facts) is None else known.length

    def written(
        self, answer: Encoded, default_headers: list[tuple[bytes, bytes]], keep_alive: bool = True
    ) -> bytes:
        """An answer as it is sent."""
        head, body = answer.head, answer.body
        if not keep_alive and _CLOSE not in head:
            head += _CLOSE
        return b"%b%b%bcontent-length: %d\r\ncontent-type: %b\r\n\r\n%b" % (
            STATUS_LINE[answer.status],
            self.default_lines(default_headers),
            head,
            len(body),
            _TYPES.get(answer.media_type) or answer.media_type.encode(),
            body,
        )

    @staticmethod
    def failed(error: BaseException | None) -> Encoded:
        """The answer where headway has a fault, which is logged."""
        _log.error("a request failed", exc_info=error)
        return Problem("failed", "the log of this server has more").encoded()

    def answer(self, hot: HotCall, facts: Facts, raw: bytes) -> Encoded | Work | None:
        """The answer, or the work of making it; None where the application has to answer."""
        token = ""
        if facts.get(b"host", b"") not in self._hosts or self._service.tokens:
            admitted = self._admitted(hot, facts)
            if admitted is None:
                return None
            token = admitted
        call = hot.call
        if call.has_body:
            kind = facts.get(b"content-type")
            if kind != b"application/json" and (raw or kind is not None):
                return None
        header = facts.get(b"idempotency-key")
        key = None if header is None else header.decode("latin-1")
        found = call.answered_at_once(hot.params, key, raw)
        if found is not None:
            return found
        return self._work(hot, token, key, raw)

    def _work(self, hot: HotCall, token: str, key: str | None, raw: bytes) -> Work | None:
        """The work of answering what cannot be answered at once; None where the application has to."""
        call = hot.call
        try:
            body = call.decoded(raw) if call.has_body else None
        except Problem:
            return None
        if isinstance(body, Acquire) and body.wait:
            return None
        asked = Asked(
            token=token, method=call.endpoint.method, path=hot.path, params=hot.params, idempotency_key=key
        )
        return call.answered(call.carried_out(asked, raw, body))

    def _admitted(self, hot: HotCall, facts: Facts) -> str | None:
        """The name of the token; empty where none is needed, None where the request is not admitted as it is."""
        host = facts.get(b"host", b"")
        if host not in self._hosts:
            if self._guard.problem(host.decode("latin-1"), None) is not None:
                return None
            if len(self._hosts) >= MOST_HOSTS:
                self._hosts.clear()
            self._hosts.add(host)
        if hot.role is None or not self._service.tokens:
            return ""
        header = facts.get(b"authorization")
        try:
            return self._service.tokens.check(
                None if header is None else header.decode("latin-1"), hot.role
            ).name
        except Problem:
            return None


def quick_acquires(hot: HotCalls, service: Service, call: ApiCall) -> QuickAcquires | None:
    """What answers the usual request for a permit in one compiled step; None where ledgers are not compiled."""
    if pure_wanted() or not ATOMIC:
        return None
    try:
        from headway.service.quick import QuickAcquires
    except ImportError:
        return None
    return QuickAcquires(hot, service, call)
