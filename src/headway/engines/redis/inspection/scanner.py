"""The ledgers of a server: found by SCAN, read without changing them.

Reading must not slow a busy server down. Keys are found with SCAN, in a bounded number of steps for each search, and
the next search goes on where the last one ended. Ledgers are read some dozens at a time by a script that the server
itself keeps from writing (EVAL_RO).
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any

from headway.engines.ledger_view import Address, Holding, LedgerClients, LedgerView, matches, order
from headway.engines.redis import Engine, open_uri
from headway.engines.redis.client.registry import escape
from headway.engines.redis.inspection.reading import read_key, read_lease, read_ledger_view
from headway.engines.redis.net.connections import CONNECTION_ERRORS
from headway.engines.redis.script.protocol import command
from headway.engines.redis.script.scripts import part, plain_script
from headway.engines.uri import public
from headway.errors import EngineUnavailable, InvalidArgument
from headway.printable import printable

RULES = 8
"""Rules of one limiter that are searched for."""
STEPS, STEP = 50, 1000
"""How often SCAN is called in one search, and for how many keys."""
HOLDERS = 50
"""Clients with tokens that are told of one by one, of each rule."""
QUEUE = 100
"""Waiters whose processes are counted."""
CHUNK = 50
"""Ledgers that are read in one round trip."""


class LedgerScanner:
    """The ledgers that a server keeps."""

    def __init__(self, uri: str, timeout: float) -> None:
        if uri.startswith("embedded:") and not Path(uri.partition("://")[2].partition("?")[0]).is_dir():
            raise InvalidArgument("engine", public(uri), "a directory that is there")
        self.engine: Engine = open_uri(uri, timeout)
        self.complete = False
        self._cursors: dict[Any, bytes] = {}
        self._known: dict[bytes, tuple[Address, Any]] = {}
        self._dump = part("dump").encode()

    @property
    def where(self) -> str:
        return self.engine.address

    # -- talking -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _connection(self, pool: Any) -> Iterator[Any]:
        """A connection; a failure of it becomes an error that can be shown."""
        connection = None
        try:
            connection = pool.take(0)
            yield connection
        except CONNECTION_ERRORS as error:
            if connection is not None:
                connection.close()
            raise EngineUnavailable(self.engine.address, str(error) or type(error).__name__) from None
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        pool.put_back(connection)

    def ask(self, pool: Any, *commands: bytes) -> list[Any]:
        """The answers to commands that are sent together; an error of the server is raised."""
        if not commands:
            return []
        with self._connection(pool) as connection:
            answers = [connection.call(b"".join(commands)), *(connection.read() for _ in commands[1:])]
        for answer in answers:
            if isinstance(answer, Exception):
                raise EngineUnavailable(self.engine.address, str(answer))
        return answers

    def pools(self) -> list[Any]:
        """All servers that keep ledgers: more than one in a cluster."""
        pools: list[Any] = getattr(self.engine, "primaries", self.engine.pools)()
        return pools

    def pool_of(self, key: bytes) -> Any:
        """The server that has a key: in a cluster, the only one that does not redirect."""
        pools = self.pools()
        for pool in pools[:-1]:
            with self._connection(pool) as connection:
                if not isinstance(connection.call(command(b"EXISTS", key)), Exception):
                    return pool
        return pools[-1]

    # -- finding -----------------------------------------------------------------------------------------

    def _scan(self, pool: Any, cursor: bytes, pattern: bytes) -> tuple[bytes, list[bytes]]:
        options = (b"MATCH", pattern, b"COUNT", b"%d" % STEP, b"TYPE", b"hash")
        ((cursor, keys),) = self.ask(pool, command(b"SCAN", cursor, *options))
        return cursor, keys

    def search(self, most_steps: int | None = STEPS) -> None:
        """Search for keys, from where the last search ended; after one full round all of them are known."""
        pattern = self.engine.namespace.encode() + b":{*"
        around = []
        for pool in self.pools():
            cursor, steps = self._cursors.get(pool, b"0"), 0
            while most_steps is None or steps < most_steps:
                cursor, keys = self._scan(pool, cursor, pattern)
                steps += 1
                for key in keys:
                    if key not in self._known and (address := read_key(key)) is not None:
                        self._known[key] = address, pool
                if cursor == b"0":
                    break
            self._cursors[pool] = cursor
            around.append(cursor == b"0")
        self.complete = self.complete or all(around)

    def addresses(self, wanted: str | None = None) -> list[Address]:
        """The known addresses that fit `wanted`: a pattern, or a part of the name or key."""
        known = (address for address, _ in self._known.values())
        return sorted((address for address in known if matches(address, wanted)), key=order)

    def of(self, name: str, key: str | None) -> list[LedgerView]:
        """A limiter's ledgers of a key: in a root of their own, or one for each metric."""
        space, label = self.engine.namespace, escape(name)
        scope = f"{space}:{{{label}}}".encode()
        root = scope if key is None else f"{space}:{{{label}:{escape(key)}}}".encode()
        found = self.read([Address(root, root, name, key, None)])
        if found and found[0].ledgers:
            return found
        pool, cursor = self.pool_of(scope), b"0"
        pattern = re.sub(rb"([][*?\\^])", rb"\\\1", scope) + b"/*"
        metrics: dict[bytes, Address] = {}
        while True:
            cursor, keys = self._scan(pool, cursor, pattern)
            for address in filter(None, map(read_key, keys)):
                if address.key == key:
                    metrics[address.place] = address
            if cursor == b"0":
                return self.read(list(metrics.values())) or found

    def reset(self, views: list[LedgerView]) -> int:
        """Make the ledgers of one root as new; returns how many there were, or -1 if the root is gone."""
        root = views[0].address.root
        keys = (root, *(view.address.place for view in views if view.address.metric is not None))
        text = plain_script("reset").text
        (found,) = self.ask(self.pool_of(root), command(b"EVAL", text, b"%d" % len(keys), *keys))
        return int(found)

    def clients(self, view: LedgerView) -> LedgerClients:
        """The waiters and the clients of a ledger, and what else is stored beside it."""
        root = view.address.root
        pool = self.pool_of(root)
        fields, queue, granted, ttl_ms = self.ask(
            pool,
            command(b"HKEYS", root),
            command(b"ZRANGE", root + b":q", b"0", b"%d" % (QUEUE - 1)),
            command(b"HLEN", root + b":g"),
            command(b"PTTL", root),
        )
        names = [field for field in fields if field[:1] == b"c"]
        heard = self.ask(pool, *(command(b"HGET", root, name) for name in names))
        epoch = view.meta.epoch
        return LedgerClients(
            epoch=f"{text_of(epoch[:16])}#{unpack_from('<d', epoch, 16)[0]:.0f}",
            server=text_of(view.meta.server),
            waiting=dict(Counter(text_of(entry[-20:-8]) for entry in queue)),
            granted=granted,
            streams={
                text_of(name[1:]): int(unpack_from("<d", answer, 8)[0])
                for name, answer in zip(names, heard, strict=True)
                if answer is not None
            },
            ttl_ms=ttl_ms,
            stored_in=text_of(root),
            holders=self._holders(pool, view),
        )

    def _holders(self, pool: Any, view: LedgerView) -> list[Holding]:
        """The clients that hold tokens: of each rule those whose leases end first."""
        found: list[Holding] = []
        for loan in view.loans:
            if not loan.clients:
                continue
            beside = (b":l%d" % loan.rule, b":e%d" % loan.rule)
            leases, queue = (view.address.place + part for part in beside)
            (names,) = self.ask(pool, command(b"ZRANGE", queue, b"0", b"%d" % (HOLDERS - 1)))
            if names:
                (kept,) = self.ask(pool, command(b"HMGET", leases, *(b"c" + name for name in names)))
                pairs = zip(names, kept, strict=True)
                found += [read_lease(name, loan.rule, lease) for name, lease in pairs if lease is not None]
        return found

    # -- reading -----------------------------------------------------------------------------------------

    def read(self, addresses: list[Address]) -> list[LedgerView]:
        """The ledgers at these addresses that still exist."""
        views: list[LedgerView] = []
        by_place: dict[Any, list[Address]] = {}
        for address in addresses:
            known = self._known.get(address.place)
            pool = self.pool_of(address.root) if known is None else known[1]
            by_place.setdefault(pool, []).append(address)
        for pool, here in by_place.items():
            for start in range(0, len(here), CHUNK):
                views += self._read_some(pool, here[start : start + CHUNK])
        return sorted(views, key=lambda view: order(view.address))

    def _read_some(self, pool: Any, addresses: list[Address]) -> Iterator[LedgerView]:
        asked = []
        for address in addresses:
            keys = (address.root,) if address.metric is None else (address.root, address.place)
            which = b"%d" % len(keys)
            asked.append(command(b"EVAL_RO", self._dump, which, *keys, *(which,) * RULES))
            asked.append(command(b"HGET", address.root, b"l"))
        answers = iter(self.ask(pool, *asked))
        for address, dumped, limit in zip(addresses, answers, answers, strict=True):
            view = read_ledger_view(address, dumped, limit)
            if view is None:
                self._known.pop(address.place, None)
            else:
                yield view


def text_of(data: bytes) -> str:
    """Text that the server keeps, safe to show."""
    return printable(data.decode(errors="replace"))
