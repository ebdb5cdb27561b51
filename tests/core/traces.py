"""A trace: commands played against one ledger, and a record of every grant and its time.

Commands are plain data, (verb, x, y) with whatever numbers: a cost is `x` folded into the limit, a permit is the
x-th of those that are open. So every list of tuples is a valid trace, hypothesis can shrink it, and a seed can make it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from headway.core.ledger import FOREVER, Ledger, Rule
from headway.core.limits import Limit, Window
from headway.core.rules import rules_of

Command = tuple[str, int, int]

VERBS = (
    *("pass", "nap", "take", "reserve", "use") * 2,
    *("hold", "hold", "enter", "complete", "complete", "cancel", "abandon", "settle"),
)
START = 1_000


def rule_of(limit: Limit | Near, tick_ns: int = 1, lease_ns: int = 0) -> Rule:
    """Kept by a perfect clock: the gap of a Window is its remote's alone."""
    if isinstance(limit, Near):
        return limit.rule()
    (rule,) = rules_of(limit, 0, 0, tick_ns, lease_ns)
    return rule


class Near(NamedTuple):
    """A `Window` without a remote of its own, and as if that were near: `Remote()` allows 10 s for the way."""

    limit: Window
    more: int
    transit: int

    def rule(self) -> Rule:
        rule = rule_of(self.limit)
        _, grid, _, _, which, bare_gap = rule.numbers()  # type: ignore[attr-defined]
        out_grid = max(1, self.transit // 1024) if self.limit.count > 1024 else 1
        rule.recall(self.limit, 1, (bare_gap + self.more, grid, self.transit, out_grid, which, bare_gap))
        return rule


@dataclass(slots=True)
class Grant:
    made: int  # when it was asked for
    at: int  # when it may be used; later than `made` if it was reserved
    cost: int
    mark: int
    tally: int
    turn: int  # the command that made it
    end: str = ""
    ended: int = FOREVER
    end_turn: int = FOREVER
    actual: int = -1  # what it cost in the end
    used: int = -1
    held: bool = False  # whether it is out until its end is told
    entered: int = -1  # since when; and by which command
    enter_turn: int = FOREVER
    cooled: bool = False  # whether it could have been in use again when it was entered

    @property
    def happened(self) -> int:
        """What it really cost at its own time; what it cost above that is a debt made when it was settled."""
        return 0 if self.end == "cancel" else min(self.cost, self.actual)

    @property
    def extra(self) -> int:
        return max(0, self.actual - self.cost)


class Player:
    """Asks one ledger as an engine would; `unit` is how many ticks one step of a "pass" is."""

    def __init__(self, ledger: Ledger, unit: int = 1, now: int = START) -> None:
        self.ledger = ledger
        self.unit = unit
        self.now = now
        self.turn = 0
        self.grants: list[Grant] = []
        self.others: list[Rule] = []  # what "adopt" may change to
        self.log: list[int] = []

    def play(self, commands: Iterable[Command], visit: Callable[[Player], None] | None = None) -> Player:
        for verb, x, y in commands:
            self.turn += 1
            getattr(self, "do_" + verb)(x, y)
            if visit is not None:
                visit(self)
        return self

    def fork(self, ledger: Ledger) -> Player:
        """Another player at this moment, with the same permits out, on another ledger."""
        twin = Player(ledger, self.unit, self.now)
        twin.turn = self.turn
        twin.grants = copy.deepcopy(self.grants)
        return twin

    def open_grants(self) -> list[Grant]:
        return [grant for grant in self.grants if not grant.end]

    def cost(self, x: int) -> int:
        return 1 + x % max(1, self.ledger.get_rule().capacity)

    def do_pass(self, x: int, y: int) -> None:
        self.now += x % 16 * self.unit

    def do_nap(self, x: int, y: int) -> None:
        """Sleep as long as a waiter would: until the time, or one nanosecond less."""
        wait = self.ledger.wait(self.now, self.cost(x))
        self.log.append(wait)
        if wait < FOREVER:
            self.now += max(0, wait - y % 2)

    def do_take(self, x: int, y: int) -> None:
        cost = self.cost(x)
        wait = self.ledger.wait(self.now, cost)
        self.log.append(wait)
        if wait == 0:
            self.grant(self.now, cost)
            self.do_use(-1, 0)

    def do_hold(self, x: int, y: int) -> None:
        """Take for a call that is bracketed."""
        cost = self.cost(x)
        wait = self.ledger.wait(self.now, cost)
        self.log.append(wait)
        if wait == 0:
            self.grant(self.now, cost, held=True)
            self.do_use(-1, 0)

    def do_enter(self, x: int, y: int) -> None:
        rule = self.ledger.get_rule()
        bare = [grant for grant in self.open_grants() if not grant.held]
        if bare and rule.bracketed:
            grant = bare[x % len(bare)]
            grant.cooled = self.now >= grant.at + rule.bare_gap  # type: ignore[attr-defined]
            grant.mark = self.ledger.enter(self.now, grant.cost, grant.mark, grant.tally, self.now)
            grant.held, grant.entered, grant.enter_turn = True, self.now, self.turn
            self.log.append(grant.mark)

    def do_reserve(self, x: int, y: int) -> None:
        cost = self.cost(x)
        rule = self.ledger.get_rule()
        if not rule.promises or rule.capacity == 0:
            return
        slot = self.ledger.slot(self.now, cost)
        self.log.append(slot)
        if slot >= 0:
            # Where several limits agree on a slot, it is later than some of them need.
            later = y % 16 * self.unit if y % 3 == 0 else 0
            self.grant(slot + later, cost)

    def grant(self, at: int, cost: int, held: bool = False) -> None:
        rule = self.ledger.get_rule()
        mark = (self.ledger.take_held if held else self.ledger.take)(at, cost)
        self.log.append(mark)
        grant = Grant(self.now, at, cost, mark, self.ledger.tally, self.turn, actual=cost)
        if rule.held or (held and rule.bracketed):
            grant.held, grant.entered, grant.enter_turn = True, at, self.turn
        self.grants.append(grant)

    def do_use(self, x: int, y: int) -> None:
        ready = [grant for grant in self.open_grants() if grant.at <= self.now and grant.used < 0]
        if ready:
            grant = ready[x % len(ready)]
            missing = self.ledger.use(self.now, grant.mark)
            self.log.append(missing)
            if missing == 0:
                grant.used = self.now

    def do_renew(self, x: int, y: int) -> None:
        out = self.open_grants()
        if out:
            grant = out[x % len(out)]
            mark = self.ledger.renew(self.now, grant.cost, grant.mark)
            self.log.append(mark)
            if mark == -1:
                grant.end, grant.ended, grant.end_turn = "expired", self.now, self.turn
            else:
                grant.mark = mark

    def do_complete(self, x: int, y: int) -> None:
        if grant := self.ending("complete", x):
            self.ledger.complete(self.now, grant.cost, grant.mark)

    def do_abandon(self, x: int, y: int) -> None:
        if grant := self.ending("abandon", x):
            self.ledger.abandon(self.now, grant.cost, grant.mark)

    def do_cancel(self, x: int, y: int) -> None:
        if grant := self.ending("cancel", x):
            self.ledger.cancel(self.now, grant.cost, grant.mark, grant.tally)

    def do_settle(self, x: int, y: int) -> None:
        if grant := self.ending("settle", x):
            grant.actual = min(y % (2 * grant.cost + 1), FOREVER)
            self.ledger.settle(self.now, grant.cost, grant.mark, grant.tally, grant.actual)

    def do_adopt(self, x: int, y: int) -> None:
        if self.others and y % 4 == 0:
            self.ledger.reconfigure(self.others[x % len(self.others)], self.now)

    def do_exhaust(self, x: int, y: int) -> None:
        if y % 8 == 0:
            self.ledger.exhaust(self.now)

    def do_copy(self, x: int, y: int) -> None:
        self.ledger = self.ledger.copy()

    def ending(self, how: str, x: int) -> Grant | None:
        out = self.open_grants()
        if not out:
            return None
        grant = out[x % len(out)]
        grant.end, grant.ended, grant.end_turn = how, self.now, self.turn
        return grant


def random_commands(
    dice: Random, size: int, verbs: Sequence[str] = VERBS, top: int = 1 << 16
) -> list[Command]:
    return [(dice.choice(verbs), dice.randrange(top), dice.randrange(top)) for _ in range(size)]


def look(player: Player) -> tuple[int, ...]:
    """Everything a ledger can be asked without changing it."""
    ledger, now = player.ledger, player.now
    costs = (1, max(1, ledger.get_rule().capacity))
    answers = [ask(now, cost) for ask in (ledger.wait, ledger.latest_wait, ledger.exact) for cost in costs]
    answers += [ledger.remaining(now), ledger.reset_after(now), ledger.in_flight(now), ledger.idle(now)]
    return tuple(map(int, answers))
