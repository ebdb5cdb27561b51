"""Which engine a URI names: the table of schemes, and what may be shown of a URI.

This table is the only place outside an engine's own package that knows the package. An engine's package offers
`open_uri(uri, timeout)`; one that wraps a user's own client also offers `open_client(client, timeout)`.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from headway.engines.base import Engine
from headway.errors import InvalidArgument
from headway.printable import printable

MEMORY = "memory://"

_REDIS = "headway.engines.redis"
SCHEMES = dict.fromkeys(
    (
        *("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"),
        *("valkey", "valkeys", "valkey+sentinel", "valkeys+sentinel", "valkey+cluster", "valkeys+cluster"),
        *("unix", "embedded"),
    ),
    _REDIS,
)
SCHEMES |= dict.fromkeys(("http", "https"), "headway.engines.http")
NEEDS = {_REDIS: (("redis", "hiredis"), "pip install 'redis[hiredis]'")}
"""What a package imports that may not be installed, and how to get it."""

SHARED = (
    "redis://, redis+sentinel://, redis+cluster://, unix://, embedded://, http:// "
    "(rediss and https for TLS, or valkey for redis)"
)
KNOWN = f"memory://, {SHARED}"
HOST = r"(?:\[[^][@/]*\]|[^][:@/]*)(?::\d{1,5})?"
HOSTS = re.compile(f"{HOST}(?:,{HOST})*")


def is_local(engine: Any) -> bool:
    """Whether ledgers are to be kept in this process."""
    return isinstance(engine, str) and engine == MEMORY


def scheme_of(uri: str) -> str | None:
    """The scheme of a shared engine's URI, or None if it is no such URI.

    >>> scheme_of("rediss://db"), scheme_of("redis"), scheme_of("memory://")
    ('rediss', None, None)
    """
    scheme, colon, _ = uri.partition("://")
    return scheme if colon and scheme in SCHEMES else None


def check_engine(engine: Any) -> None:
    """Raise for what names no engine, before anything is asked that only a shared engine needs."""
    if isinstance(engine, str):
        if is_local(engine):
            return
        scheme = scheme_of(engine)
        if scheme is None:
            raise InvalidArgument("engine", public(engine), f"one of {KNOWN}")
        _package(SCHEMES[scheme], public(engine)).check_uri(engine)
    elif not isinstance(engine, Engine) and not is_client(engine):
        # Of anything but a number its type alone: there may be a password in it.
        shown = engine if engine is None or isinstance(engine, int | float) else type(engine)
        raise InvalidArgument(
            "engine",
            shown,
            f"a URI, a headway.Engine, or a client of redis-py; a URI begins with one of {KNOWN}",
        )


def open_engine(engine: Any, timeout: float) -> Engine:
    """The engine of a URI or a client, shared by all limiters that name it; or the engine itself."""
    check_engine(engine)
    if isinstance(engine, Engine):
        return engine
    opened: Engine
    if isinstance(engine, str):
        opened = _package(SCHEMES[engine.partition("://")[0]], public(engine)).open_uri(engine, timeout)
    else:
        opened = importlib.import_module(_REDIS).open_client(engine, timeout)
    return opened


def is_client(thing: Any) -> bool:
    """Whether it is a client of redis-py; without redis-py there is none."""
    if type(thing).__module__.partition(".")[0] in ("builtins", "headway"):
        return False
    try:
        package = importlib.import_module(_REDIS)
    except ModuleNotFoundError:
        return False
    return bool(package.is_client(thing))


def open_scanner(uri: str, timeout: float) -> Any:
    """A reader of all ledgers that an engine keeps, for `headway top` and `headway inspect`."""
    if uri.startswith("memory:"):
        raise InvalidArgument(
            "engine", public(uri), "a shared one: ledgers in memory are seen by their process alone"
        )
    if scheme_of(uri) is None:
        raise InvalidArgument("engine", public(uri), f"one of {SHARED}")
    check_engine(uri)
    return _package(SCHEMES[uri.partition("://")[0]], public(uri)).open_scanner(uri, timeout)


def _package(name: str, shown: str) -> Any:
    modules, install = NEEDS.get(name, ((), ""))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in modules:
            raise
        raise InvalidArgument(
            "engine", shown, f"memory://, or install {error.name}, which this one needs: {install}"
        ) from None


def public(uri: str) -> str:
    """A URI without its secrets, and without characters that a terminal would obey.

    >>> public("redis://:secret@db:6379/0?password=x"), public("redis://:half/secret@db")
    ('redis://db:6379/0', 'redis://db')
    >>> public("redis://:half#secret@db"), public("redis://db?password=half@secret")
    ('redis://...', 'redis://...')
    >>> public("redis://:secret"), public("redis://me:secret"), public("redis://db/secret"), public("redis:secret")
    ('redis://...', 'redis://...', 'redis://db/...', 'redis:...')
    """
    scheme, colon, rest = uri.partition("://")
    if not colon:
        rest = scheme
        scheme, colon = (
            ("", "") if HOSTS.fullmatch(rest.rpartition("@")[2]) else (rest.partition(":")[0], ":")
        )
    before, at, after = rest.rpartition("@")
    hosts, slash, path = after.partition("?")[0].partition("/")
    if not scheme.startswith("unix") and "sentinel" not in scheme and not (at or path.isdigit()):
        path = path and "..."
    shown = f"{hosts}{slash}{path}"
    if scheme == "embedded":
        shown = after.partition("?")[0]
    elif not HOSTS.fullmatch(hosts):
        shown = "..."
    if "#" in rest or "?" in before:
        shown = "..."
    return printable(scheme.rpartition("@")[2].partition(":")[0] + colon + shown)
