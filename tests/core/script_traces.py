"""Traces on which a script must agree with the core, number by number: commands as plain data, and a player.

    trace = random_trace(seed, "bucket", 200)
    results = play(trace)

A trace is a list of tuples. Every command is complete in itself: permits are named by their cost, mark and tally as
the core gave them (the generator plays while it draws), so a player needs no book of its own. All numbers but the
limits are integers in ticks of 1000 ns; `now` starts near 1.8e15 (microseconds since 1970) and never runs backward.

    ("open",     now, limit, lease_ns)            always the first: a fresh ledger       -> ()
    ("adopt",    now, limit, lease_ns)            go on under another rule               -> ()
    ("wait",     now, cost)                       ledger.wait                            -> (wait,)
    ("take",     now, cost)                       take at `now` if the wait is 0         -> (0, mark, tally)
                                                                                         or (wait,)
    ("reserve",  now, cost)                       take at `slot`, where one is promised  -> (at, mark, tally)
                                                                                         or (-1, after)
    ("hold",     now, cost)                       the same by `take_held`                -> as take
    ("enter",    now, cost, mark, tally, at)      ledger.enter                           -> (mark,)
    ("complete", now, cost, mark)                 the four ends                          -> ()
    ("abandon",  now, cost, mark)                                                        -> ()
    ("cancel",   now, cost, mark, tally)                                                 -> ()
    ("settle",   now, cost, mark, tally, actual)                                         -> ()
    ("renew",    now, cost, mark)                 ledger.renew                           -> (mark,); -1: expired
    ("look",     now, cost)                       changes nothing that can be observed
                                                  -> (wait, exact, remaining, reset_after, in_flight, sure)

- `rule_of(limit, lease_ns)` is the rule of "open" and "adopt", `numbers_of(rule)` its integers by name: what a
  script is given. Every rule passes `check_exact`.
- `at` of "reserve" is `ledger.slot(now, cost)`: now + wait where the wait is exact and within the horizon, and
  where Spacing has a slot left. `after` is `ledger.slot_after(now, cost)`. `tally` is the ledger's own right
  after the grant.
- In a trace of fixed windows every command ends with two more numbers, (end, next_end): the first tick after
  the window that contains `now`, and after the window behind that one; those of the new limit in an "adopt". A
  calendar is nothing for a script, so it is told. A ledger rolls at time t to `end` if t < end, else to
  `next_end`. A reservation at or after `next_end` is refused: (-1, 0).
- `exact` is 0 or 1. FOREVER (2**62) stands for "never" in wait, sure and reset_after; LONG_AGO (-2**62) for a
  time that never was, in the states of Bucket, Spacing and FixedWindow. Both are powers of two, exact as doubles.
- Permits are ended at most once, "renew" replaces the mark (an expired one is ended all the same), and some ends
  come late, after the ledger has forgotten the permit.

A result is (answer, state, tally) after each command: `answer` as above, and of the ledger `state()` and `tally`:

    window        (free, enterable, t, n, ..., -1, t, n, ...)  runs of cooling, then of out; emptied ones are left out
    bucket        (tat, part, latest, tally)
    spacing       (last, slack, used, before, older)  used stays LONG_AGO: no command reports a use
    fixed_window  (ends, used)
    concurrency   (out, lease, t, n, ...)             runs of leases
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from headway.core.ledger import FOREVER, Ledger, Rule
from headway.core.limits import Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.core.remote import Remote
from headway.core.rules import check_exact, rules_of
from headway.errors import InvalidLimit

Command = tuple[Any, ...]
Answer = tuple[int, ...]
Result = tuple[Answer, tuple[int, ...], int]
Permit = list[int]  # cost, mark, tally

TICK_NS = 1_000
START = 1_800_000_000_000_000
LATEST = START + (1 << 51)
KINDS = ("window", "bucket", "spacing", "fixed_window", "concurrency")
FIELDS: dict[str, tuple[str, ...]] = {
    "window": ("gap", "transit", "grid", "out_grid", "bracketed", "bare_gap"),
    "bucket": ("whole", "part", "parts", "room", "room_part"),
    "spacing": ("interval", "allowance", "step", "max_reserved"),
    "fixed_window": (),
    "concurrency": ("lease",),
}
VERBS = (
    *("wait", "look", "reserve", "take", "take", "take", "complete", "complete"),
    *("cancel", "abandon", "settle", "renew", "hold", "hold", "enter"),
)


def rule_of(limit: Limit, lease_ns: int) -> Rule:
    """As a server keeps it: microseconds, and a clock that may be slewed."""
    (rule,) = rules_of(limit, TICK_NS, 1000, TICK_NS, lease_ns)
    return rule


def numbers_of(rule: Rule) -> dict[str, int]:
    """Everything of a rule that a script must know."""
    names = ("capacity", "held", "horizon", *FIELDS[rule.limit.kind])
    return {name: int(getattr(rule, name)) for name in names}


def play(trace: list[Command], opener: Callable[[Rule], Ledger] = lambda rule: rule.open()) -> list[Result]:
    """Every answer, and the state after it; `opener` may open something else that has a ledger's methods."""
    _, _, limit, lease_ns = trace[0][:4]
    ledger = opener(rule_of(limit, lease_ns))
    return [_result(ledger, command) for command in trace]


def _result(ledger: Ledger, command: Command) -> Result:
    verb, now, *rest = command
    answer: Answer = () if verb == "open" else globals()["_" + verb](ledger, now, *rest)
    return answer, ledger.state(), ledger.tally


def _adopt(ledger: Ledger, now: int, limit: Limit, lease_ns: int, *_: int) -> Answer:
    ledger.reconfigure(rule_of(limit, lease_ns), now)
    return ()


def _wait(ledger: Ledger, now: int, cost: int, *_: int) -> Answer:
    return (ledger.wait(now, cost),)


def _take(ledger: Ledger, now: int, cost: int, *_: int) -> Answer:
    wait = ledger.wait(now, cost)
    return (wait,) if wait else (0, ledger.take(now, cost), ledger.tally)


def _hold(ledger: Ledger, now: int, cost: int, *_: int) -> Answer:
    wait = ledger.wait(now, cost)
    return (wait,) if wait else (0, ledger.take_held(now, cost), ledger.tally)


def _enter(ledger: Ledger, now: int, cost: int, mark: int, tally: int, at: int, *_: int) -> Answer:
    return (ledger.enter(now, cost, mark, tally, at),)


def _reserve(ledger: Ledger, now: int, cost: int, *edges: int) -> Answer:
    at = ledger.slot(now, cost)
    if at < 0 or (edges and at >= edges[1]):
        return (-1, ledger.slot_after(now, cost))
    return (at, ledger.take(at, cost), ledger.tally)


def _complete(ledger: Ledger, now: int, cost: int, mark: int, *_: int) -> Answer:
    ledger.complete(now, cost, mark)
    return ()


def _abandon(ledger: Ledger, now: int, cost: int, mark: int, *_: int) -> Answer:
    ledger.abandon(now, cost, mark)
    return ()


def _cancel(ledger: Ledger, now: int, cost: int, mark: int, tally: int, *_: int) -> Answer:
    ledger.cancel(now, cost, mark, tally)
    return ()


def _settle(ledger: Ledger, now: int, cost: int, mark: int, tally: int, actual: int, *_: int) -> Answer:
    ledger.settle(now, cost, mark, tally, actual)
    return ()


def _renew(ledger: Ledger, now: int, cost: int, mark: int, *_: int) -> Answer:
    return (ledger.renew(now, cost, mark),)


def _look(ledger: Ledger, now: int, cost: int, *_: int) -> Answer:
    wait, exact = ledger.wait(now, cost), int(ledger.exact(now, cost))
    known = (ledger.remaining(now), ledger.reset_after(now), ledger.in_flight(now))
    return (wait, exact, *known, ledger.latest_wait(now, cost))


def random_trace(seed: int, kind: str, n: int, *, adopts: bool = True) -> list[Command]:
    """A trace of `n` commands on random limits of one kind: `seed % 3` is their size, from a few ticks to 2**52."""
    return _Writer(seed, kind, adopts).write(n)


class _Writer:
    """Plays on the core while it draws: what is drawn next depends on what was granted, and when more would be."""

    def __init__(self, seed: int, kind: str, adopts: bool) -> None:
        self.dice = Random(f"{seed} {kind}")
        # The largest limits are alone: moved from one to another, times would leave the exact range.
        size = seed % 3
        count = self.dice.randint(2, 4) if adopts and size < 2 else 1
        self.limits = [_draw(self.dice, kind, size) for _ in range(count)]
        self.fixed = kind == "fixed_window"
        self.limit, lease_ns = self.limits[0]
        self.ledger = rule_of(self.limit, lease_ns).open()
        self.now = START + self.dice.randrange(10**6)
        self.permits: list[Permit] = []
        self.trace: list[Command] = []

    def write(self, n: int) -> list[Command]:
        self.add("open", *self.limits[0])
        while len(self.trace) < n:
            self.step()
        return self.trace

    def step(self) -> None:
        self.advance()
        dice = self.dice
        verb = dice.choice(VERBS) if dice.random() > 0.02 else "adopt"
        if verb == "adopt":
            self.limit, lease_ns = dice.choice(self.limits)
            self.add("adopt", self.limit, lease_ns)
        elif verb in ("wait", "look", "take", "hold", "reserve"):
            self.ask(verb, self.cost())
        elif self.permits:
            self.end(verb, dice.randrange(len(self.permits)))

    def ask(self, verb: str, cost: int) -> None:
        answer = self.add(verb, cost)
        if len(answer) == 3:
            self.permits.append([cost, answer[1], answer[2]])
            if len(self.permits) > 30:  # some are never ended
                del self.permits[self.dice.randrange(30)]

    def end(self, verb: str, which: int) -> None:
        if self.dice.random() < 0.5:
            which = len(self.permits) - 1  # the last one: what a cancel restores exactly
        cost, mark, tally = permit = self.permits[which]
        if verb == "renew":
            (mark,) = self.add("renew", cost, mark)
            if mark >= 0 or not self.ledger.get_rule().held:
                permit[1] = mark
            return
        if verb == "enter":
            # Since its grant, since now, or somewhere between: an engine may hear of it late.
            at = self.now - self.dice.choice((0, 0, 1, 50, 3_000))
            permit[1] = self.add("enter", cost, mark, tally, at)[0]
            return
        if verb in ("complete", "abandon"):
            self.add(verb, cost, mark)
        elif verb == "cancel":
            self.add(verb, cost, mark, tally)
        else:
            most = 2 * cost if self.dice.random() < 0.9 else 100 * cost
            self.add(verb, cost, mark, tally, self.dice.randint(0, min(most, 1 << 52)))
        del self.permits[which]

    def advance(self) -> None:
        """By nothing, by a little, to the tick at which more is granted or around it, or far."""
        dice, ledger = self.dice, self.ledger
        whim = dice.random()
        step = 0
        if whim < 0.2:
            step = dice.randint(1, 3)
        elif whim < 0.6:
            cost = self.cost()
            ask = ledger.copy()
            waits = (ask.wait(self.now, cost), ask.latest_wait(self.now, cost), ask.reset_after(self.now))
            step = dice.choice(waits)
            if step == FOREVER:
                step = 0
            elif dice.random() < 0.5:
                step = step // dice.randint(1, 8)
            step = max(0, step + dice.choice((0, 0, -1, 1)))
        elif whim < 0.62:
            step = dice.randrange(1 << dice.randint(1, 44))
        self.now = min(self.now + step, LATEST)

    def cost(self) -> int:
        """Mostly small, now and then all there is or one more."""
        dice, capacity = self.dice, self.ledger.get_rule().capacity
        if dice.random() < 0.1:
            return max(1, capacity + dice.choice((-1, 0, 1)))
        most = capacity if dice.random() < 0.3 else 1 + capacity // 8
        return dice.randint(1, max(1, most))

    def add(self, verb: str, *rest: Any) -> Answer:
        edges: tuple[int, ...] = ()
        if self.fixed:
            window_of = rule_of(self.limit, 0).window_of  # type: ignore[attr-defined]
            end = window_of(self.now)[1]
            edges = (end, window_of(end)[1])
        command = (verb, self.now, *rest, *edges)
        self.trace.append(command)
        return _result(self.ledger, command)[0]


def _draw(dice: Random, kind: str, size: int) -> tuple[Limit, int]:
    """A limit and a lease in ns; `size` 0: a few ticks, 1: as people write them, 2: as large as numbers go."""
    while True:
        lease = dice.choice((1, 50, 10**6, 1 << 49)[size : size + 2])
        lease_ns = dice.randint(1, lease) * TICK_NS - dice.choice((0, 0, 1, 999))
        try:
            limit = _DRAW[kind](dice, size)
            check_exact([rule_of(limit, lease_ns)])
        except InvalidLimit:
            continue
        return limit, lease_ns


def _span(dice: Random, size: int, least: int = 1) -> str | int:
    """In ns, whole ticks or not."""
    if size == 0:
        span = dice.randint(1, 40) * TICK_NS
    elif size == 1:
        span = dice.choice((1, 10, 250, 1_000, 60_000, 3_600_000, 86_400_000)) * 10**6
    else:
        span = dice.randint(1, 1 << dice.randint(30, 52)) * TICK_NS
    if dice.random() < 0.3:
        span = max(least, span - dice.randint(0, 999))
    return f"{span}ns"


def _some(dice: Random, size: int) -> int:
    if dice.random() < 0.03:
        return 0
    return dice.choice((dice.randint(1, 5), dice.randint(1, (20, 5_000, 1 << 52)[size])))


def _window(dice: Random, size: int) -> Window:
    remote: Remote | bool | None = dice.choice((None, None, False))
    if dice.random() < 0.5:
        transit = _span(dice, size)
        drift = dice.choice((0, 250, 600))
        out = dice.choice((0, 0, _span(dice, 0)))
        back = dice.choice((0, 0, _span(dice, 0)))
        resolution = dice.choice((0, "1us", "16ms" if size else "3us"))
        remote = Remote(
            resolution=resolution, drift_ppm=drift, out_latency=out, back_latency=back, max_transit=transit
        )
    return Window(_some(dice, size), per=_span(dice, size), remote=remote)


def _bucket(dice: Random, size: int) -> Bucket:
    burst = max(1, _some(dice, size))
    if dice.random() < 0.3:
        rate = dice.choice([(3, "1s"), (7, "1us"), (1, "3ns"), (1, "1us"), (999, "1ms"), (10**6 + 3, "1s")])
        return Bucket(rate, burst=burst)
    return Bucket((_some(dice, size), _span(dice, size)), burst=burst)


def _spacing(dice: Random, size: int) -> Spacing:
    most = dice.choice((0, 1, 3, 100, _some(dice, size)))
    late = dice.choice((None, 0, "1us", "1500ns", _span(dice, min(size, 1), 0)))
    return Spacing(_span(dice, size), max_reserved=most, expire_after=late, strict=dice.random() < 0.9)


def _fixed_window(dice: Random, size: int) -> FixedWindow:
    if size == 1:
        per = dice.choice(("1s", "7s", "minute", "hour", "3h", "day", "week", "month"))
        return FixedWindow(_some(dice, size), per=per, tz=dice.choice(("UTC", "Europe/Berlin")))
    span = _span(dice, size)
    return FixedWindow(_some(dice, size), per=f"{1 << 60}ns" if len(str(span)) > 20 else span)


def _concurrency(dice: Random, size: int) -> Concurrency:
    return Concurrency(_some(dice, size))


_DRAW: dict[str, Callable[[Random, int], Limit]] = {
    "window": _window,
    "bucket": _bucket,
    "spacing": _spacing,
    "fixed_window": _fixed_window,
    "concurrency": _concurrency,
}
