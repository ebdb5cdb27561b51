"""What a limiter says with every call to a shared engine, for all of its keys: its name, its rules, its leases."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headway.core.bucket import BucketRule
from headway.core.concurrency import ConcurrencyRule
from headway.core.fixed_window import FixedWindowRule
from headway.core.ledger import Rule
from headway.core.spacing import SpacingRule
from headway.core.window import WindowRule
from headway.engines.redis import words
from headway.engines.redis.account import Account, Anchor, Terms
from headway.engines.redis.halts import Halt
from headway.engines.redis.scripts import BUCKET, SPACING, WINDOW, Script, book_script
from headway.engines.redis.words import TICK
from headway.errors import Closed

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.engines.redis.account import Talk
    from headway.engines.redis.engine import Engine
    from headway.engines.redis.requests import Ask

specs: weakref.WeakSet[Spec] = weakref.WeakSet()

MARGIN = 1.05
MOST_ACCOUNTS = 4096
"""Accounts that are kept before those of ledgers that have expired are looked for."""


class Spec(Terms):
    """A limiter's part of every command."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        clock: Clock,
        text: str,
        names: list[str | None],
        rules: tuple[Rule, ...],
        rules_for: Callable[[tuple[str | None, ...]], tuple[Rule, ...]] | None,
        *,
        timeout_ns: int,
        on_loss: str,
        max_quarantine_ns: int | None,
        tell: Callable[[str, Account, float], None],
    ) -> None:
        self.engine = engine
        self.name = name
        self.clock = clock
        self.text = text.encode()
        self.rules = rules
        self.rules_for = rules_for
        self.metrics = names[0] is not None
        self.names = names
        self.drift = engine.drift
        self.sharded = engine.sharded
        self.lease_ns = engine.lease_ns
        self.lease = float(engine.lease_ns // TICK)
        self.timeout_ns = timeout_ns
        self.on_loss = on_loss
        self.max_quarantine = None if max_quarantine_ns is None else max_quarantine_ns // TICK
        self.tell = tell
        self.accounts: dict[Any, Account] = {}
        self.room_for = MOST_ACCOUNTS
        # Who waits for a permit, whatever the key and the way to wait; and whether nobody is let in any more.
        self.waiters: set[Ask] = set()
        self.usual = None
        self.closed = False
        # With metrics all ledgers share a slot, and a script can look whether the limiter is paused.
        self.halt = Halt(self) if self.sharded and not self.metrics else None
        self.anchors: dict[bytes, Anchor] = {}
        self._wall = (0.0, 0)
        self._stretch = 1 + clock.drift_ppm / 1e6 + engine.drift_ppm / 1e6
        self._resolution = max(1, int(clock.resolution * 1e9))
        self.declare(text, rules)
        specs.add(self)

    def begin(self) -> None:
        """Nobody of this process asks, waits or holds; so it is in a forked child."""
        self.waiters.clear()
        if self.halt is not None:
            self.halt.begin()
        for account in list(self.accounts.values()):
            account.begin()

    def check_open(self) -> None:
        if self.closed:
            raise Closed(self.name)

    def close(self) -> None:
        """Let nobody in any more, and have those who wait notice it."""
        self.closed = True
        self.usual = None
        asks = set(self.waiters)
        for account in list(self.accounts.values()):
            asks.update(account.standing.values(), account.sleepers)
        for ask in asks:
            # Whoever's question is on its way looks whether we are closed when the answer is there.
            if ask.verdict in (words.GRANTED, words.STANDING):
                ask.withdraw()
                ask.void = True
            ask.ring()

    def declare(self, text: str, rules: tuple[Rule, ...]) -> None:
        """Say from now on that these are the limits; the one who said so last is right."""
        self.text = text.encode()
        self.rules = rules
        self.generation = float(time.time_ns() // TICK)
        self.crowded = False
        self.usual = None
        self._renew()

    def queue_up(self) -> None:
        """This limit alone would promise times, but somebody stands in the queue: another version of the limit has more
        rules. Who is promised the next time, and the next, would never let them have their turn."""
        self.crowded = True
        self._renew()

    def _renew(self) -> None:
        for keys, account in list(self.accounts.items()):
            account.renew(self.rules_of(keys))

    def rules_of(self, keys: tuple[str | None, ...]) -> tuple[Rule, ...]:
        """The rules of a key, or of a combination of keys: some may have one of their own."""
        return self.rules if self.rules_for is None else self.rules_for(keys)

    def can_queue(self, rules: tuple[Rule, ...]) -> bool:
        """Whether somebody may have to stand in a queue."""
        if self.crowded or len(rules) > 1:
            return True
        # Alone, these promise a time to everybody who asks.
        kind = words.kind_of(rules[0])
        return kind not in (BUCKET, SPACING) and (kind != WINDOW or rules[0].held)

    def script_of(self, rules: tuple[Rule, ...], can_queue: bool) -> Script:
        return book_script(frozenset(words.kind_of(rule) for rule in rules), can_queue)

    def text_of(self, rules: tuple[Rule, ...]) -> bytes:
        """The limits as they are written down beside the ledger, for whoever looks at it."""
        if rules == self.rules:
            return self.text
        parts = zip(self.names, rules, strict=True)
        return "; ".join(
            f"{name}: {rule.limit}" if name else str(rule.limit) for name, rule in parts
        ).encode()

    def allowance_of(self, rules: tuple[Rule, ...]) -> int:
        """How late after its slot a permit may still be spent, on our clock."""
        slack = [rule.allowance * TICK for rule in rules if isinstance(rule, SpacingRule) and rule.strict]
        return int(min([self.lease_ns, *slack]) * (1 - self.drift))

    def account(self, keys: tuple[str | None, ...]) -> Account:
        """The account of a key, or of a combination of keys where the limiter has metrics."""
        found = self.accounts.get(keys)
        if found is None:
            if len(self.accounts) >= self.room_for:
                self.tidy()
            found = self.accounts.setdefault(
                keys, Account(self, self.places(keys), keys[0], self.rules_of(keys))
            )
        return found

    def tidy(self) -> None:
        """Forget the accounts of ledgers that may be gone by now."""
        now = self.clock.now()
        for keys, account in list(self.accounts.items()):
            if account.expires < now and not account.busy and not account.lanes_busy():
                self.accounts.pop(keys, None)  # two threads may do this at once
        self.usual = None
        self.room_for = max(MOST_ACCOUNTS, 2 * len(self.accounts))

    def make_usual(self, account: Account, costs: tuple[int, ...]) -> tuple[Account, tuple[int, ...]]:
        """Remember what most callers ask for, unless the account was forgotten or the limiter closed meanwhile."""
        usual = self.usual = (account, costs)
        if self.closed or account not in self.accounts.values():
            self.usual = None
        return usual

    def places(self, keys: tuple[str | None, ...]) -> tuple[bytes, ...]:
        """The Redis keys: the root, and one for each metric's ledger. All have one hash tag, so they share a slot."""
        space, name = self.engine.namespace, escape(self.name)
        if not self.metrics:
            key = "" if keys[0] is None else f":{escape(keys[0])}"
            return (f"{space}:{{{name}{key}}}".encode(),)
        root = f"{space}:{{{name}}}"
        metrics = [escape(name or "") for name in self.names]
        own = [
            f"{root}/{metric}" if key is None else f"{root}/{metric}:{escape(key)}"
            for metric, key in zip(metrics, keys, strict=True)
        ]
        return tuple(place.encode() for place in (root, *own))

    def records(self, account: Account, talk: Talk) -> bytes:
        if not account.walled:
            return account.packed
        anchor = self.anchors.get(talk.ident)
        ticks, at = (anchor.ticks, anchor.received) if anchor is not None else self._wall
        if not ticks:
            return account.records(time.time_ns() // TICK)
        return account.records(int(ticks + (talk.sent - at) / TICK))

    def server_time(self, ticks: float, at: int) -> None:
        """The edges that we sent were those of another period: go by this."""
        self._wall = (ticks, at)
        self.anchors.clear()

    def stretched(self, ticks: float) -> int:
        """A wait by the server's clock as nanoseconds on ours: never shorter, whichever of the two runs fast."""
        return int(ticks * TICK * self._stretch) + self._resolution if ticks > 0 else 0

    def refine(self, ask: Ask) -> None:
        """Reckon a promised slot anew, from the last time the server was heard: the shorter ago, the less the clocks
        can differ. What was reckoned before stays true."""
        anchor = self.anchors.get(ask.account.ident)
        if anchor is None or anchor.received <= ask.heard or not ask.due or ask.void:
            return
        left = ask.due - anchor.ticks
        drift = self.engine.drift
        ask.slot = min(ask.slot, anchor.received + self.stretched(left))
        spread = 1 - drift if left > 0 else 1 + drift
        ask.expires = max(ask.expires, anchor.sent + int(left * TICK * spread) + ask.account.allowance_ns)

    def sure_for(self, account: Account) -> int:
        """For how many nanoseconds a slot can be foretold, until clocks may differ by a good part of its allowance."""
        return int(account.allowance_ns / (16 * self.engine.drift)) if self.engine.drift else self.lease_ns

    def backoff(self, ask: Ask) -> tuple[int | None, int]:
        """After a denial: nanoseconds until it may be worth to ask again, and over how many to spread those who do.

        None where asking again would not help in time.
        """
        rule = ask.account.rules[0]
        if not isinstance(rule, SpacingRule) or len(ask.account.rules) > 1:
            return None, 0
        wait, reserved = ask.rows[0][1], ask.rows[0][3]
        if reserved < rule.max_reserved:
            return None, 0
        return self.stretched(max(1.0, wait - rule.max_reserved * rule.step)), rule.step * TICK

    def local_time(self, account: Account, ticks: float, latest: int) -> int:
        """When, on our clock, the server's showed `ticks`, at the earliest; `latest` if nobody can tell."""
        anchor, drift = self.anchors.get(account.ident), self.engine.drift
        if anchor is None:
            return latest
        passed = (ticks - anchor.ticks) * TICK
        return min(latest, anchor.sent + int(passed * (1 - drift if passed > 0 else 1 + drift)))

    def quarantine(self, account: Account, now: float = 0.0) -> tuple[float, float]:
        """How long until all that was forgotten is harmless, capped; and uncapped, if the cap cut it short (else 0).

        `now` is the server's time: a period of the calendar ends by that, and our own clock may be wrong. 0 if nobody
        knows it.
        """
        now = int(now) or time.time_ns() // TICK
        needed = max(self._harmless(rule, now) for rule in account.rules) * MARGIN + 100_000
        if self.max_quarantine is not None and needed > self.max_quarantine:
            return float(self.max_quarantine), float(int(needed))
        return float(int(needed)), 0.0

    def _harmless(self, rule: Rule, now: int) -> float:
        match rule:
            case WindowRule():
                return rule.gap + (rule.transit if rule.held else self.lease)
            case BucketRule():
                return rule.room + self.lease
            case SpacingRule():
                return rule.step + self.lease
            case FixedWindowRule():
                return float(rule.window_of(now)[1] - now)
            case ConcurrencyRule():
                return rule.lease
        return self.lease


def after_fork() -> None:
    """In a forked child: streams, places in queues and leases are the parent's."""
    for spec in list(specs):
        spec.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)


def escape(text: str) -> str:
    """A name that cannot be mistaken for two, nor end a hash tag: "a:b" with key "c" is not "a" with key "b:c".

    >>> escape("user:42"), escape("{x}"), escape("/tasks/send")
    ('user%3A42', '%7Bx%7D', '%2Ftasks%2Fsend')
    """
    return (
        quote(text, safe="@!$'()*,;= +&~.-_[]<>|^\\\"`?#", errors="surrogatepass")
        if not text.isalnum() or not text.isascii()
        else text
    )
