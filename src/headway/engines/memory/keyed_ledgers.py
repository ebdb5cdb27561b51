"""The ledgers of one rule, one for each key, and how those that are not needed any more go away.

A key whose ledger equals a fresh one can be forgotten without any difference to a caller. The naive ways to find such
keys are a thread that looks for them (threads started by a constructor are a surprise) and a time to live per key (a
heap, and a push for every call). Here every call does a little of the work: the keys are in a list, and a cursor moves
over it in a circle, 64 keys at a time. When the sweep finds little to forget it comes back later and later, at the
latest every 1024 calls; when it finds much it comes back with the next call. A new key moves the cursor too, so that
the list cannot outgrow what is live by more than a constant factor. After n keys have fallen idle, n / 64 + 1024
further calls have forgotten them all.
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
        self.default = self.fresh(self.rule, None)

    def fresh(self, rule: Rule, key: str | None) -> Ledger:
        ledger = rule.open_for(key)
        if self.full_at is not None:
            ledger.exhaust(self.full_at)
        return ledger

    def rule_for(self, key: str | None) -> Rule:
        """The rule of a key: its override, or the common one."""
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
        return self.ledgers.get(key) or self.fresh(self.rule_for(key), key)

    def put(self, key: str | None, ledger: Ledger) -> None:
        """Let another ledger take the place of a key's own."""
        if key is None:
            self.default = ledger
        elif key in self.ledgers:
            self.ledgers[key] = ledger

    def open(self, key: str) -> Ledger:
        ledger = self.fresh(self.rule_for(key), key)
        self.ledgers[key] = ledger
        self.keys.append(key)
        self.countdown -= SLOWEST // (BATCH // 2)
        if len(self.keys) > self.peak:
            self.peak = len(self.keys)
        return ledger

    def sweep(self, now: int, wall: int) -> None:
        """Move the cursor over the next keys and forget the idle ones."""
        found = 0
        keys = self.keys
        ledger: Ledger | None = None
        try:
            for _ in range(min(BATCH, len(keys))):
                if self.cursor >= len(keys):
                    self.cursor = 0
                key = keys[self.cursor]
                # None where a signal handler's exception ended the last sweep halfway.
                ledger = self.ledgers.get(key)
                if ledger is None or ledger.idle(wall if ledger.get_rule().uses_wall_clock else now):
                    self.ledgers.pop(key, None)
                    keys[self.cursor] = keys[-1]
                    keys.pop()
                    found += 1
                else:
                    self.cursor += 1
        except BaseException:
            if ledger is not None:
                ledger.mend(wall if ledger.get_rule().uses_wall_clock else now)
            raise
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
            self.default = self.fresh(self.rule, None)
        elif key in self.ledgers:
            self.ledgers[key] = self.fresh(self.rule_for(key), key)

    def without_override(self, choose: Callable[[str], Rule | None] | None) -> list[Ledger]:
        """The ledgers that follow the common rule. Overrides may be a function of the user's, so this may raise."""
        own = [ledger for key, ledger in list(self.ledgers.items()) if choose is None or choose(key) is None]
        return [self.default, *own]

    def reconfigure(self, rule: Rule, ledgers: list[Ledger], now: int, wall: int) -> None:
        """Go on under another rule, with what `without_override` returned."""
        self.rule = rule
        moment = wall if rule.uses_wall_clock else now
        for ledger in ledgers:
            ledger.reconfigure(rule, moment)
