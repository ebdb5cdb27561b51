"""A limit for every request of a WSGI application: Flask, Django, Bottle, Pyramid, or plain.

    app = RateLimit(app, "100/minute")
    app.wsgi_app = RateLimit(app.wsgi_app, "100/minute")        # Flask

The options are those of `headway.integrations.asgi`, with functions of the environment instead of the scope. The
permit ends when the server has closed the response, so that a limit of what happens at once covers its whole body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from headway import Permit
from headway.integrations.client_address import ClientAddress
from headway.integrations.inbound import Ban, Inbound, Limits
from headway.limiter.request_input import Cost

__all__ = ["RateLimit"]

Environ = dict[str, Any]
PERMIT: Final = "headway.permit"
"""Where the application finds the request's permit in its environment, to settle it for instance."""


class RateLimit:
    """WSGI middleware.

    >>> def app(environ, start_response): ...
    >>> limited = RateLimit(app, "100/minute", exempt=lambda environ: environ["PATH_INFO"] == "/healthz")

    `limit` is one limit, a `Limiter`, a function of the environment that names one, or one for each tier that `tier`
    names. `deduct_when` is a function of the response's status, a number.
    """

    def __init__(
        self,
        app: Any,
        limit: Limits,
        *,
        key: Callable[[Environ], str | None] | None = None,
        trusted: Iterable[str] = (),
        cost: Cost | Callable[[Environ], Cost] = 1,
        exempt: Callable[[Environ], bool] | None = None,
        tier: Callable[[Environ], str] | None = None,
        deduct_when: Callable[[int], bool] | None = None,
        ban: Ban | None = None,
        headers: bool = True,
        legacy_headers: bool = False,
        **options: Any,
    ) -> None:
        self._app = app
        self._inbound = Inbound(
            limit, key=ClientAddress(trusted).of_environ if key is None else key, cost=cost, exempt=exempt, tier=tier,
            deduct_when=deduct_when, ban=ban, headers=headers, legacy_headers=legacy_headers, **options,
        )  # fmt: skip

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        permit, refusal, _ = self._inbound.admit(environ)
        if refusal is not None:
            start_response(refusal.reason, list(refusal.headers.items()))
            return [] if environ.get("REQUEST_METHOD") == "HEAD" else [refusal.body]
        if permit is None:
            return self._app(environ, start_response)  # type: ignore[no-any-return]
        environ[PERMIT] = permit
        try:
            return Response(self._app(environ, self._starting(permit, start_response)), permit)
        except BaseException:
            if permit.ended is None:
                permit.complete()
            raise

    def _starting(self, permit: Permit, start_response: Any) -> Callable[..., Any]:
        inbound = self._inbound
        told = list(inbound.headers_of(inbound.status_of(permit)).items())

        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            if inbound.deduct_when is not None and not inbound.deduct_when(int(status[:3])):
                if permit.ended is None:
                    permit.cancel()
            elif not any(name.lower() == "ratelimit" for name, _ in headers):
                headers = [*headers, *told]
            return start_response(status, headers, *error)

        return start


class Response:
    """The body of a response, which ends the permit when the server closes it."""

    __slots__ = ("_body", "_permit")

    def __init__(self, body: Iterable[bytes], permit: Permit) -> None:
        self._body = body
        self._permit = permit

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """The server has sent everything, or the client is gone."""
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            if self._permit.ended is None:
                self._permit.complete()
