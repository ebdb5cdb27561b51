"""A limit was changed: its ledgers go on under the new rule, and what was taken stays taken.

The server cannot do it. What becomes of permits, debts and promises under another rule is written once, in the core
(`Ledger.reconfigure`), and some of it needs integers of any size. So the first client with a newer version of a
limit gets the status RECONFIGURE, and does it:

    read     the whole ledger, its meta data and the time, in one step (`lua/dump.lua`)
    adopt    each rule's ledger, decoded as the core's, under the rule that governs from now on
    write    all of it back in one step (`script/lua/reconfigure.lua`), if the meta data are still those that were read

Every decision changes the meta data, so nothing is lost in between: a client that was too slow has written nothing,
gets RECONFIGURE again, and reads again. Of several versions side by side (a rolling deploy) the one that was declared
last governs: clients of an older one go by the rule that they find stored.

Tokens that clients hold stay with them (`headway.core.lease`): the ledger goes on with what is left of the new limit,
and if that is less than nothing, it lends and grants nothing until as many have come back.

In a limiter with metrics every ledger has a key of its own, and is adopted when it is used.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import unpack
from typing import TYPE_CHECKING, Any

from headway.core.bucket import BucketRule
from headway.core.window import WindowRule
from headway.engines.redis.script.codec import Meta, Stored, decode, encode, rule_here, unnoted
from headway.engines.redis.script.protocol import command, kind_of, no_script
from headway.engines.redis.script.scripts import plain_script
from headway.errors import LimitMismatch

if TYPE_CHECKING:
    from headway.core.ledger import Rule
    from headway.engines.redis.client.ledger_client import LedgerClient

GRACE = 60_000_000
"""Ticks that a ledger is kept after it equals a fresh one; as in `script/lua/header.lua`."""


LENDING = 2
"""The format of a ledger of which clients hold tokens."""


def span_of(rule: Rule) -> int:
    """For how long a token counts that was spent just now, in ticks."""
    match rule:
        case WindowRule():
            return rule.transit + max(rule.gap, rule.bare_gap)
        case BucketRule():
            return rule.room + 1
    return 0


def reconfigure(client: LedgerClient) -> Generator[bytes, Any, None]:
    """Bring a client's ledgers under its rules, unless another process is faster: a flow, as `RoundTrip.resolve` is."""
    registry = client.registry
    pools = tuple(dict.fromkeys(client.keys))
    where = client.whereabouts()
    keys = (b"%d" % len(pools), *pools)
    before, time, *parts = yield from run_plain("dump", *keys, *(b"%d" % pool for pool in where))
    if before is None:
        return  # it has expired: the next command starts a fresh one
    meta = Meta.read(before)
    if meta.governed > registry.generation:
        return  # another limit was declared since, and that one governs
    now = int(max(meta.last, registry.engine.fixed_time or unpack("<d", time)[0]))
    longest, said = meta.expires - now, []
    for i, (rule, pool) in enumerate(zip(client.rules, where, strict=True)):
        value, cooling, out, *_ = parts[5 * i : 5 * i + 5]
        stored = Stored(value or b"", cooling, out)
        if not value or (pool != 1 and stored.epoch != meta.epoch):
            said += [b"%d" % pool, b"", b"", b"", b"0"]  # there is none, or its root has forgotten it
            continue
        if stored.kind != kind_of(rule):
            existing = yield command(b"HGET", client.keys[0], b"l")
            raise LimitMismatch(registry.name, existing.decode(), client.text.decode())
        ledger = decode(stored)
        abandoned = unnoted(stored, ledger, now)
        ledger.reconfigure(rule_here(rule, stored.lent), now)
        left = ledger.reset_after(now)
        if meta.format == LENDING:
            # What clients hold may be spent until the ledger's time is up, and then counts by the new rule.
            left = max(left, int(meta.expires - now) + span_of(rule))
        longest = max(longest, left + GRACE)
        said += [b"%d" % pool, *encode(ledger, pool, now, meta.epoch, rule, stored.lent), b"%d" % abandoned]
    after = meta._replace(seq=meta.seq + 1, last=now, expires=now + longest, governed=registry.generation)
    ms = b"%d" % (int(longest) // 1000 + 2)
    yield from run_plain("reconfigure", *keys, before, after.pack(), client.text, ms, *said)


def run_plain(name: str, *arguments: bytes) -> Generator[bytes, Any, Any]:
    """The reply of a script. It is called by its SHA, as all others are, so that no user needs the right to EVAL."""
    script = plain_script(name)
    reply = yield command(b"EVALSHA", script.sha, *arguments)
    if isinstance(reply, Exception) and no_script(
        reply
    ):  # a long reply is not turned into a text to see that
        yield command(b"SCRIPT", b"LOAD", script.text)
        reply = yield command(b"EVALSHA", script.sha, *arguments)
    if isinstance(reply, Exception):
        raise reply
    return reply
