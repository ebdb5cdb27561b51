"""What a limiter says with every call to a shared engine, for all of its keys: its name, its rules, its leases."""

from __future__ import annotations

import os
import threading
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
from headway.engines.redis.account import MEMORY, Account, Anchor, Terms
from headway.engines.redis.halts import Halt
from headway.engines.redis.lanes import leave_closed, retire
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
BATCH = 32
"""Accounts that one call looks at, at most, to find those that nobody uses; and as many that were found before."""
SLOWEST = 64
"""Calls until some are looked at again, when few were found."""
IDLE = 2_000_000_000
"""Nanoseconds without use after which an account is reduced to what has to be known of its ledger."""

MOST_STREAMS, STREAM = 4, 16
"""How many streams are kept for an account that is not used, and the length of a name."""

Keys = tuple[str | None, ...]
Memory = tuple[bytes, bytes, Any]
"""What `Account.remember` says and the names of its streams; who answered last; and the box of its letters."""


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
        # Of each key that was used and whose ledger may still be there: the account, or what is left of it. A hand goes
        # over all that have accounts (ring), and another over all that were reduced once (shelf), whether they have an
        # account now or not. Those that were reduced while somebody still had them are strays.
        self.accounts: dict[Keys, Account] = {}
        self.memories: dict[Keys, Memory] = {}
        self.ring: list[Keys] = []
        self.shelf: list[Keys] = []
        self.hand = self.other_hand = 0
        self.pace = self.countdown = SLOWEST
        self._strays: weakref.WeakSet[Account] = weakref.WeakSet()
        # Who moves from one to the other has it. The collector may come meanwhile, and end somebody.
        self._lock = threading.RLock()
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
        self._lock = threading.RLock()
        for account in self.everybody():
            account.begin()

    def check_open(self) -> None:
        if self.closed:
            raise Closed(self.name)

    def close(self) -> None:
        """Let nobody in any more, and have those who wait notice it."""
        self.closed = True
        self.usual = None
        asks = set(self.waiters)
        for account in self.everybody():
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
        for account in self.everybody():
            account.renew(self.rules_of(account.whose))

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

    def account(self, keys: Keys) -> Account:
        """The account of a key, or of a combination of keys where the limiter has metrics."""
        # First: what is found then is not looked at by this call.
        self.countdown -= 1
        if self.countdown <= 0:
            self.move_hand()
        found = self.accounts.get(keys)
        if found is None:
            found = self._open(keys)
        found.seen = 0
        return found

    def _open(self, keys: Keys) -> Account:
        """An account for a key that has none: a new one, or one that knows what was known when it was reduced."""
        account = Account(self, self.places(keys), keys[0], self.rules_of(keys))
        account.whose = keys
        with self._lock:
            # In an order in which nothing is forgotten if a signal's handler raises.
            memory = self.memories.get(keys)
            if memory is not None:
                self._recollect(account, memory)
            if keys not in self.accounts:
                self.ring.append(keys)
                self.countdown -= SLOWEST // (BATCH // 4)
            found = self.accounts.setdefault(keys, account)
            self.memories.pop(keys, None)
        return found

    def _recollect(self, account: Account, memory: Memory) -> None:
        known, ident, box = memory
        account.recollect(known, ident)
        names, process = known[MEMORY.size :], self.engine.process
        # In a forked child, those of its parent are not its own.
        if names.startswith(process):
            account.spare = [names[at : at + STREAM] for at in range(0, len(names), STREAM)]
        if box is not None and box.stream.startswith(process):
            account.box = box

    # -- idle accounts -----------------------------------------------------------------------------------

    def move_hand(self) -> None:
        """Look at some keys: reduce those that nobody uses to what has to be known of their ledgers, and forget those
        whose ledgers may be gone by now."""
        with self._lock:
            now, found = self.clock.now(), 0
            for _ in range(min(BATCH, len(self.ring))):
                self.hand %= len(self.ring)
                account = self.accounts.get(self.ring[self.hand])
                if account is None or self._reduce(account, now):
                    take_out(self.ring, self.hand)
                    found += 1
                else:
                    self.hand += 1
            for _ in range(min(BATCH, len(self.shelf))):
                self.other_hand %= len(self.shelf)
                keys = self.shelf[self.other_hand]
                memory = self.memories.get(keys)
                if keys in self.accounts or (memory is not None and expiry_of(memory) > now):
                    self.other_hand += 1
                else:
                    take_out(self.shelf, self.other_hand)
                    self.memories.pop(keys, None)
                    found += 1
            self.pace = 1 if found > BATCH // 4 else min(2 * self.pace, SLOWEST)
            self.countdown = self.pace

    def _reduce(self, account: Account, now: int) -> bool:
        """Whether nobody has used it for a while, so that it is none of our accounts any more.

        A thread may have got it just before, and use it nonetheless: a stray. That is as good as another process. Its
        lanes have streams of their own; what it hears, its successor is told (`pass_on`); the rules, pauses and the end
        of the limiter it is told as all are (`everybody`). An end of a permit that was taken here travels with the
        successor's questions (`successor`), and if that knows of another ledger, alone; so do its letters, doubts and
        errands that are still under way.
        """
        if not account.seen:
            account.seen = now
            return False
        if now - account.seen < IDLE or now - account.heard < IDLE:
            return False
        if self.usual is not None and self.usual[0] is account:
            return False
        leave_closed(account)
        streams = retire(account)
        if streams is None:
            return False
        # First the flag: what is heard from now on is passed on, and what was heard before is seen here.
        account.reduced = True
        box = self.engine.place_of(account).posts.boxes.get(account, account.box)
        known = account.remember() + b"".join(streams[:MOST_STREAMS])
        self.memories[account.whose] = (known, account.ident, box)
        if not account.shelved:
            self.shelf.append(account.whose)
        self._strays.add(account)
        self.accounts.pop(account.whose, None)
        if self.usual is not None and self.usual[0] is account:
            self.usual = None  # by another thread, which has not seen that it is gone
        return True

    def pass_on(self, account: Account) -> None:
        """A stray has heard of its ledger."""
        with self._lock:
            successor = self.accounts.get(account.whose) or self._open(account.whose)
            if successor is account:
                account.reduced = False  # somebody was interrupted while reducing it
            else:
                successor.hear_from(account)

    def successor(self, account: Account, epoch: bytes) -> Account:
        """Who says what a stray has to say, if that knows of the same ledger. It waits for nobody: the collector may
        have ended somebody while we have another lock."""
        if not self._lock.acquire(blocking=False):
            return account
        try:
            if account.whose not in self.accounts and account.whose not in self.memories:
                return account
            found = self.accounts.get(account.whose) or self._open(account.whose)
            found.seen = 0
            return found if found.epoch == epoch else account
        except Exception:  # noqa: BLE001 - an override is the user's, and this is to say something, not to fail
            return account
        finally:
            self._lock.release()

    def everybody(self) -> list[Account]:
        """All accounts that somebody may use."""
        with self._lock:
            return [*self.accounts.values(), *self._strays]

    def known(self) -> int:
        """How many keys have ledgers, as far as this process knows."""
        with self._lock:
            return len(self.accounts) + len(self.memories)

    def make_usual(self, account: Account, costs: tuple[int, ...]) -> tuple[Account, tuple[int, ...]]:
        """Remember what most callers ask for, unless the account was forgotten or the limiter closed meanwhile."""
        usual = self.usual = (account, costs)
        if self.closed or self.accounts.get(account.whose) is not account:
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


def take_out(ring: list[Keys], at: int) -> None:
    """Another takes its place."""
    last = ring.pop()
    if at < len(ring):
        ring[at] = last


def expiry_of(memory: Memory) -> int:
    """Until when the ledger must be there, on our clock."""
    return int.from_bytes(memory[0][MEMORY.size - 16 : MEMORY.size - 8], "little", signed=True)


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
