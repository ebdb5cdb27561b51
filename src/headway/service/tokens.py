"""Which client a request is from, and what it may do.

Tokens are compared by their digests, in constant time, and all of them are: how long it takes says nothing about which
one was near. A role may do what the roles before it may: `read` looks, `use` takes and ends permits and submits
events, `admin` puts, deletes, pauses and resets limits. Where no tokens are configured, every client is `admin`: such a
server listens on loopback alone, unless `--insecure` says otherwise.

A WebSocket outlives the request that opened it. It is closed when a reload leaves it without a token that may use it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from headway.service.config import TokenConfig
from headway.service.config_values import ROLES
from headway.service.grpc.status import GrpcError, GrpcStatus
from headway.service.problems import Problem

NO_TOKENS = TokenConfig("", b"", "admin")
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="headway"'}
NOT_ALLOWED: Final = 1008
"""The code with which a WebSocket is closed that may not be used, or not any more."""


class Tokens:
    """The tokens that are known."""

    def __init__(self, tokens: Mapping[str, TokenConfig]) -> None:
        self.known = tuple(tokens.values())
        self.on_change: set[Callable[[], None]] = set()

    def __bool__(self) -> bool:
        return bool(self.known)

    def replace(self, tokens: Mapping[str, TokenConfig]) -> None:
        """Know these from now on."""
        self.known = tuple(tokens.values())
        for look in list(self.on_change):
            look()

    def check(self, authorization: str | None, role: str) -> TokenConfig:
        """The token of a request that needs this role; raises a `Problem`."""
        if not self.known:
            return NO_TOKENS
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            detail = "give the header 'Authorization: Bearer TOKEN'"
            raise Problem("no-token", detail, headers=CHALLENGE)
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        found: TokenConfig | None = None
        for known in self.known:
            if hmac.compare_digest(known.digest, digest):
                found = known
        if found is None:
            raise Problem("no-token", "this token is not known here", headers=CHALLENGE)
        if ROLES.index(found.role) < ROLES.index(role):
            detail = f"this needs a token with the role {role}, and [tokens.{found.name}] has the role {found.role}"
            raise Problem("role-too-low", detail, role=found.role, needed=role)
        return found


class TokenGuard:
    """Around an ASGI application. `role_of` says which role a method and a path need; None: no token at all."""

    def __init__(self, app: Any, tokens: Tokens, role_of: Callable[[str, str], str | None]) -> None:
        self._app = app
        self._tokens = tokens
        self._role_of = role_of

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        role = self._role_of(scope.get("method", "WEBSOCKET"), scope["path"])
        if role is not None:
            header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
            authorization = None if header is None else header.decode("latin-1")
            try:
                token = self._tokens.check(authorization, role)
            except Problem as problem:
                await _refuse(problem, scope, receive, send)
                return
            scope["headway.token"] = token.name
            if scope["type"] == "websocket":
                await self._while_allowed(authorization, role, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _while_allowed(
        self, authorization: str | None, role: str, scope: Any, receive: Any, send: Any
    ) -> None:
        """Run the application on a WebSocket, and close that when its token is not good any more."""
        closing: list[asyncio.Task[None]] = []

        async def close() -> None:
            with suppress(OSError, RuntimeError):  # it was closed just now
                await send({"type": "websocket.close", "code": NOT_ALLOWED, "reason": "its token has ended"})

        def look() -> None:
            try:
                self._tokens.check(authorization, role)
            except Problem:
                if not closing:
                    closing.append(asyncio.ensure_future(close()))

        async def send_unless_closed(message: Any) -> None:
            if closing:
                raise OSError("the connection is closed: its token has ended")
            await send(message)

        self._tokens.on_change.add(look)
        try:
            await self._app(scope, receive, send_unless_closed)
        finally:
            self._tokens.on_change.discard(look)


async def _refuse(problem: Problem, scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await problem.response()(scope, receive, send)
    else:
        await send(
            {"type": "websocket.close", "code": NOT_ALLOWED, "reason": ""}
        )  # before it is accepted: 403


def grpc_guard(tokens: Tokens) -> Callable[[str | None], None]:
    """Refuses calls of gRPC without a token of the role `use`: a function of the metadatum `authorization`."""

    def check(authorization: str | None) -> None:
        try:
            tokens.check(authorization, "use")
        except Problem as problem:
            known = problem.kind == "role-too-low"
            raise GrpcError(
                GrpcStatus.PERMISSION_DENIED if known else GrpcStatus.UNAUTHENTICATED, str(problem)
            ) from None

    return check
