"""What is checked at the first connection to a server: whether the server can keep a promise at all.

This is a flow, as in `ledger_client.py`: it yields commands and gets the replies sent in. It checks three things.

- The version. Scripts rely on what came with Redis 7.
- Whether the server may *evict*: a ledger that was evicted to make room has forgotten its grants. Clients notice that
  and put the ledger in quarantine, again and again, as evictions do not come alone.
- Whether the server may be an *isolated primary*. When a network is cut in two, the old primary does not know that a
  replica was promoted, and goes on granting to the clients on its side. `min-replicas-to-write` makes it stop, after
  `min-replicas-max-lag`. Until then the new primary must not have granted anything; the loss keeps its ledgers in
  quarantine for at least a lease. With `strict=true` a primary that has replicas and lacks these settings is refused;
  otherwise there is a warning.

A server user without the right to run CONFIG or INFO skips these checks: nothing here is needed to work.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from headway.engines.redis.script.protocol import command
from headway.errors import InvalidArgument
from headway.printable import printable

if TYPE_CHECKING:
    from headway.engines.redis.engine import Engine

log = logging.getLogger("headway")

OLDEST = 7


def server_checks(engine: Engine) -> Generator[bytes, Any, None]:
    """Read what has to be known, warn of what is doubtful, refuse what cannot work."""
    facts = read_info((yield command(b"INFO", b"server")))
    version = facts.get("redis_version", "")
    if version.partition(".")[0].isdigit() and int(version.partition(".")[0]) < OLDEST:
        raise InvalidArgument(
            "engine",
            engine.address,
            f"Redis {OLDEST} or later, or Valkey; this is Redis {printable(version)}",
        )
    room = yield from setting("maxmemory")
    policy = yield from setting("maxmemory-policy")
    if room not in (None, "0") and policy not in (None, "noeviction"):
        log.warning(
            "engine %s: it may evict ledgers (maxmemory-policy %s), and a limit whose ledger was evicted is put in "
            "quarantine; set: CONFIG SET maxmemory-policy noeviction",
            engine.address,
            printable(policy),
        )
    replicas = read_info((yield command(b"INFO", b"replication"))).get("connected_slaves", "0")
    least = yield from setting("min-replicas-to-write")
    lag = yield from setting("min-replicas-max-lag")
    if replicas == "0" or least is None or lag is None:
        return
    lease = engine.lease_ns / 1e9
    if least != "0" and 0 < int(lag) <= lease:
        return
    if least == "0":
        needed, advice = "min-replicas-to-write of at least 1", "set: CONFIG SET min-replicas-to-write 1"
    else:
        needed = f"min-replicas-max-lag from 1 to {lease:g} s, its lease; it is {lag}"
        advice = f"set: CONFIG SET min-replicas-max-lag {max(1, int(lease))}" + (
            ", and lease=1 or more" if lease < 1 else ""
        )
    if engine.strict:
        raise InvalidArgument(
            "engine",
            engine.address,
            f"a primary with {needed}, as strict=true asks for: cut off from its replicas, this one would go on "
            f"granting after another was promoted; {advice}",
        )
    log.warning(
        "engine %s: a primary that is cut off from its replicas goes on granting after another was promoted; %s",
        engine.address,
        advice,
    )


def setting(name: str) -> Generator[bytes, Any, str | None]:
    """A setting of the server's configuration, None if it may not be read."""
    answer = yield command(b"CONFIG", b"GET", name.encode())
    if isinstance(answer, list) and len(answer) == 2:
        return str(answer[1], "utf-8", "replace")
    return None


def read_info(answer: Any) -> dict[str, str]:
    """What INFO says; nothing if it was not allowed.

    >>> read_info(b"# Server\\r\\nredis_version:7.2.4\\r\\n")
    {'redis_version': '7.2.4'}
    """
    if not isinstance(answer, bytes):
        return {}
    lines = (line.partition(":") for line in answer.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
