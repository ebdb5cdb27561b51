"""A client of the service's plain HTTP, by the standard library alone: one connection, kept open.

A request whose answer was lost is sent again, on a new connection. That is safe for what is read, and for a submit
because it has an id: the second time it gets the answer of the first. What cannot be reached at all, or answers that it
cannot now, is `ServiceUnavailable`; every other error of the service is `Refused`.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any, Final
from urllib.parse import quote, urlsplit

from headway.errors import HeadwayError, InvalidArgument
from headway.once.gate import new_id
from headway.printable import printable

DEFAULT_URL: Final = "http://127.0.0.1:8080"
TIMEOUT: Final = 10.0
PAUSES: Final = (0.05, 0.25, 1.0)
"""Seconds between attempts, where an answer was lost."""


class ServiceUnavailable(HeadwayError):
    """The service cannot be reached, or says that it cannot answer now: the same again may work later.

    >>> print(ServiceUnavailable("http://127.0.0.1:8080", "Connection refused"))
    http://127.0.0.1:8080 is unavailable: Connection refused
    """

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{printable(url)} is unavailable: {printable(reason)}")


class Refused(HeadwayError):
    """The service has refused a request; `kind` is the last part of the problem's type."""

    def __init__(self, status: int, kind: str, detail: str) -> None:
        self.status = status
        self.kind = kind
        super().__init__(printable(detail))


def checked_url(url: str) -> tuple[str, str, int, str]:
    """(scheme, host, port, path) of a service's URL, or `InvalidArgument`.

    >>> checked_url("http://[::1]:8080/"), checked_url("https://ops.example/headway")
    (('http', '::1', 8080, ''), ('https', 'ops.example', 443, '/headway'))
    """
    accepted = f"a URL of the service, such as {DEFAULT_URL}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidArgument("url", url, accepted) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidArgument("url", url, accepted)
    if parts.username is not None:
        raise InvalidArgument("url", "...", f"{accepted}; a name and a password are not used")
    return (
        parts.scheme,
        parts.hostname,
        port or (443 if parts.scheme == "https" else 80),
        parts.path.rstrip("/"),
    )


class Client:
    """For one thread at a time."""

    def __init__(self, url: str = DEFAULT_URL, timeout: float = TIMEOUT) -> None:
        scheme, host, port, self._path = checked_url(url)
        self.url = url
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        self._connection: http.client.HTTPConnection = kind(host, port, timeout=timeout)

    def close(self) -> None:
        self._connection.close()

    def submit(
        self, gate: str, event: str, id: str | None = None, value: str | None = None
    ) -> dict[str, Any]:
        """The answer to a submit, accepted or rejected."""
        body = {"event": event, "id": new_id() if id is None else id}
        if value is not None:
            body["value"] = value
        return self._answer("POST", f"/v1/gates/{quote(gate, safe='')}/events", body)

    def gate(self, gate: str) -> dict[str, Any]:
        """What a gate is, and what is pending there."""
        return self._answer("GET", f"/v1/gates/{quote(gate, safe='')}", None)

    def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        status, found = self._exchange(method, path, body)
        if status == 200 or "accepted" in found:
            return found
        kind = str(found.get("type", "")).removeprefix("urn:headway:")
        detail = str(found.get("detail") or f"{method} {path} was answered with {status}")
        if status in (502, 503, 504):
            raise ServiceUnavailable(self.url, detail)
        raise Refused(status, kind, detail)

    def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json, application/problem+json"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        for pause in (*PAUSES, None):
            try:
                self._connection.request(method, self._path + path, data, headers)
                reply = self._connection.getresponse()
                return reply.status, _object(reply.read())
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if pause is None or not _lost(error):
                    raise ServiceUnavailable(self.url, _words(error)) from None
                time.sleep(pause)
        raise AssertionError


def _lost(error: Exception) -> bool:
    """Whether the connection was there and broke: the server may have been restarted, or has closed an idle one."""
    return isinstance(error, ConnectionResetError | BrokenPipeError | http.client.HTTPException)


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object of an answer; an empty one if it has none, as the page of a proxy."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
