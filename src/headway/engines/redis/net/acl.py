"""What a server's ACL has to allow: just the commands that are sent, and those that the scripts call.

The list is read from the scripts themselves, so that it cannot be out of date. `INFO` and `CONFIG GET` are sent but
not needed: without INFO a restart or a failover is noticed only by what is missing afterwards, and without CONFIG
there is no warning of settings that break a promise.
"""

from __future__ import annotations

import re
from importlib.resources import files

SENT = {"evalsha", "hget", "ping", "script|load", "subscribe", "unsubscribe"}
IN_A_CLUSTER = {"asking", "cluster|slots", "spublish", "ssubscribe", "sunsubscribe"}
USEFUL = {"config|get", "info"}
"""Not needed to work."""


def acl_line(
    user: str, password: str, *, namespace: str = "headway", cluster: bool = False, db: bool = False
) -> str:
    """The command that makes a server user with the rights that headway needs, and no others.

    >>> acl_line("limits", "secret", namespace="shop")[:66]
    'ACL SETUSER limits on >secret ~shop:* &shop:* -@all +config|get +d'
    """
    allowed = SENT | USEFUL | called()
    allowed = allowed | IN_A_CLUSTER if cluster else allowed - IN_A_CLUSTER
    if db:
        allowed |= {"select"}
    words = " ".join(f"+{name}" for name in sorted(allowed))
    return f"ACL SETUSER {user} on >{password} ~{namespace}:* &{namespace}:* -@all {words}"


def called() -> set[str]:
    """The commands that the scripts call."""
    lua = files("headway.engines.redis.script") / "lua"
    texts = [entry.read_text() for entry in lua.iterdir() if entry.name.endswith(".lua")]
    return {name.lower() for text in texts for name in re.findall(r"call\('([A-Z]+)'", text)}
