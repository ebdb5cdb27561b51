"""The ledgers of one rule, one for each key, and how those that nobody needs any more go away.

A key whose ledger equals a fresh one can be forgotten without anybody noticing. The naive ways to find such
keys are a thread that looks for them (threads started by a constructor surprise everybody) and a time to live
per key (a heap, and a push for every call). Here every call does a little of the work: keys stand in a ring,
and a hand moves over it, 64 keys at a time. When it finds little to forget it comes back later and later, at
the latest every 1024 calls; when it finds much it comes back with the next call. A new key moves the hand too,
so that the ring cannot outgrow what is live by more than a constant factor. After n keys have fallen idle, n /
64 + 1024 further calls have forgotten them all.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.core.ledger import Ledger, Rule

BATCH = 64
SLOWEST = 1024


class KeyedLedgers:
    __slots__ = (
        "choose",
        "countdown",
        "cursor",
        "default",
        "full_at",
        "keys",
        "ledgers",
        "pace",
        "peak",
        "rule",
    )

    def __init__(self, rule: Rule, choose: Callable[[str], Rule | None] | None, full_at: int | None) -> None:
        self.rule = rule
        self.choose = choose
        self.full_at = full_at
        self.pace = SLOWEST
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.ledgers: dict[str, Ledger] = {}
        self.keys: list[str] = []
        self.cursor = 0
        self.peak = 0
        self.countdown = self.pace
        self.default = self.fresh(self.rule)

    def fresh(self, rule: Rule) -> Ledger:
        ledger = rule.open()
        if self.full_at is not None:
            ledger.exhaust(self.full_at)
        return ledger

    def rule_for(self, key: str | None) -> Rule:
        """The rule of a key: its override, or the shelf's."""
        if key is None or self.choose is None:
            return self.rule
        return self.choose(key) or self.rule

    def find(self, key: str | None) -> Ledger:
        """The ledger of a key, opened when it is asked for."""
        if key is None:
            return self.default
        self.countdown -= 1
        ledger = self.ledgers.get(key)
        if ledger is None:
            ledger = self.open(key)
        return ledger

    def peek(self, key: str | None) -> Ledger:
        """The ledger of a key to look at; one that is not there is not kept."""
        if key is None:
            return self.default
        return self.ledgers.get(key) or self.fresh(self.rule_for(key))

    def open(self, key: str) -> Ledger:
        ledger = self.fresh(self.rule_for(key))
        self.ledgers[key] = ledger
        self.keys.append(key)
        self.countdown -= SLOWEST // (BATCH // 2)
        if len(self.keys) > self.peak:
            self.peak = len(self.keys)
        return ledger

    def sweep(self, now: int, wall: int) -> None:
        """Move the hand over the next keys and forget the idle ones."""
        found = 0
        keys = self.keys
        for _ in range(min(BATCH, len(keys))):
            if self.cursor >= len(keys):
                self.cursor = 0
            key = keys[self.cursor]
            ledger = self.ledgers[key]
            if ledger.idle(wall if ledger.get_rule().uses_wall_clock else now):
                del self.ledgers[key]
                keys[self.cursor] = keys[len(keys) - 1]
                keys.pop()
                found += 1
            else:
                self.cursor += 1
        if found > BATCH // 4:
            self.pace = 1
        else:
            self.pace = min(2 * self.pace, SLOWEST)
        self.countdown = self.pace
        if self.peak > 8 * len(keys) + BATCH:
            # A dict keeps the room that it once needed, until it is copied.
            self.ledgers = dict(self.ledgers)
            self.peak = len(keys)

    def forget(self, key: str | None) -> None:
        """Let a key start anew."""
        if key is None:
            self.default = self.fresh(self.rule)
        elif key in self.ledgers:
            self.ledgers[key] = self.fresh(self.rule_for(key))

    def reconfigure(self, rule: Rule, now: int, wall: int) -> None:
        """Go on under another rule; keys with a rule of their own keep it."""
        self.rule = rule
        moment = wall if rule.uses_wall_clock else now
        self.default.reconfigure(rule, moment)
        for key, ledger in self.ledgers.items():
            if self.rule_for(key) is rule:
                ledger.reconfigure(rule, moment)
