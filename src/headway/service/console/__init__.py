"""The console: the page at `/` that shows what a server does, from files beside this one.

There is no build step, and nothing comes from elsewhere. The page may load and connect to this server alone, and runs
no script that is not one of these files (`POLICY`): a key or an event that looks like markup stays a text. What the
page shows comes from `/v1/live` and needs a token there; the files themselves say nothing about the server, and need
none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE: Final = "index.html"
FOLDER: Final = "/console/"


@cache
def page_files() -> dict[str, bytes]:
    """The files of the page by their names.

    >>> sorted(name for name in page_files() if not name.endswith(".js"))
    ['console.css', 'icon.svg', 'index.html']
    """
    found = (file for file in files(__name__).iterdir() if _suffix(file.name) in KINDS)
    return {file.name: file.read_bytes() for file in found}


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]


def console_routes() -> list[Route]:
    """The routes of the page and its files."""
    return [
        Route("/", _answer(PAGE), methods=["GET"]),
        *(Route(FOLDER + name, _answer(name), methods=["GET"]) for name in page_files() if name != PAGE),
    ]


def is_console(path: str) -> bool:
    """Whether a path is one of the page's, which need no token.

    >>> is_console("/"), is_console("/console/console.js"), is_console("/console/nothing.js"), is_console("/v1/live")
    (True, True, False, False)
    """
    return path == "/" or (path.startswith(FOLDER) and path.removeprefix(FOLDER) in page_files())


def _answer(name: str) -> Callable[[Request], Awaitable[Response]]:
    body = page_files()[name]
    tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {
        "Cache-Control": "no-cache",  # looked at again each time, which is one short answer
        "Content-Security-Policy": POLICY,
        "Cross-Origin-Resource-Policy": "same-origin",
        "ETag": tag,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=KINDS[_suffix(name)])

    return endpoint
