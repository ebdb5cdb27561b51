"""Gates, subscriptions and copies with one fault each: the worlds have to find them all.

As in `headway.lab.mutants`, each is the real thing with one line changed, as a likely mistake would change it. Here the
change is made in the text of a class, so that it is exactly one; a text that is not there any more is an error.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any

from headway.core.once import OnceGate
from headway.engines.memory.gates import MemoryGate
from headway.lab.clocks import BILLION
from headway.lab.once.town import Parts
from headway.lab.once.worlds import Outcome, World, draw, run_world
from headway.once import Once, Replica, Subscription

SLOTS: dict[type, str] = {OnceGate: "core", MemoryGate: "engine", Once: "once", Replica: "replica"}


def rewritten(kind: type, old: str, new: str, **names: Any) -> Any:
    """A class with one part of its text replaced, in its own module's names and these."""
    text = textwrap.dedent(inspect.getsource(kind))
    if text.count(old) != 1:
        raise LookupError(
            f"{kind.__name__} has {text.count(old)} times {old!r}: give its mutant another text"
        )
    scope = {**vars(sys.modules[kind.__module__]), **names}
    code = compile(
        f"from __future__ import annotations\n{text.replace(old, new)}", f"<mutant {kind.__name__}>", "exec"
    )
    exec(code, scope)
    return scope[kind.__name__]


@dataclass(frozen=True)
class Mutant:
    """A fault: of a class, a text and what stands there instead; and what a world needs so that it can show."""

    name: str
    kind: type
    old: str
    new: str
    fixed: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> Parts:
        mutant = rewritten(self.kind, self.old, self.new)
        if self.kind is Subscription:
            return Parts(once=rewritten(Once, "class Once:", "class Once:", Subscription=mutant))
        return Parts(**{SLOTS[self.kind]: mutant})

    def world(self, seed: int) -> World:
        return draw(seed, **self.fixed)


ONLY, STRICT = {"strict": False}, {"strict": True}
LOSING = {
    "failovers": 10,
    "restarts": 0,
    "losses": 0,
    "cuts": 0,
    "steps": (),
    "near": False,
    "looks": False,
    "silent": False,
    "lost": 0.05,
    "killed": 0.5,
    "duration": BILLION,
    "rest": BILLION // 3,
    "rough": 15 * BILLION,
    "kinds": 20,
    "processes": 4,
    "followers": 4,
    "max_pending": 1000,
    "retention": 60 * BILLION,
    "one_way": BILLION // 50,
    "timeout": BILLION // 5,
}
"""Worlds in which lines are lost again and again, and not much else happens."""

MUTANTS = (
    # what is decided
    Mutant(
        "exactly the duration apart is a conflict",
        OnceGate,
        "if self.seen[event].time + self.rule.duration > now:",
        "if self.seen[event].time + self.rule.duration >= now:",
    ),
    Mutant(
        "a rejected event extends in only mode",
        OnceGate,
        "if self.rule.strict:\n            # It",
        "if True:\n            # It",
        ONLY,
    ),
    Mutant(
        "a rejected event extends nothing in strict mode",
        OnceGate,
        "self.seen[event] = Seen(now, id)\n            repeated",
        "self.seen[event] = seen\n            repeated",
        STRICT,
    ),
    Mutant(
        "a repeat does not invalidate",
        OnceGate,
        "repeated = self.pending.pop(event, None)",
        "repeated = None",
        STRICT,
    ),
    Mutant(
        "what was invalidated is published too",
        OnceGate,
        "repeated = self.pending.pop(event, None)",
        "repeated = self.pending.get(event)",
        STRICT,
    ),
    Mutant(
        "a repeat stops what was due before it",
        OnceGate,
        "now = self.advance(now)\n        known",
        "now = self.now = max(now, self.now)\n        known",
        STRICT,
    ),
    Mutant(
        "an event is published twice",
        OnceGate,
        "self._end(self.pending.pop(event), PUBLISHED, now)",
        "self._end(self.pending[event], PUBLISHED, now); self._end(self.pending.pop(event), PUBLISHED, now)",
        STRICT,
    ),
    Mutant(
        "the last of what is due is published first",
        OnceGate,
        "event = next(iter(self.pending))\n            if",
        "event = next(reversed(self.pending))\n            if",
        STRICT,
    ),
    Mutant(
        "a retry counts as a repeat",
        OnceGate,
        "if known is not None:\n            if known[1] != event",
        "if False:\n            if known[1] != event",
    ),
    Mutant("an id of another event is heard", OnceGate, "raise IdReused(id, known[1], event)", "pass"),
    Mutant(
        "answers are forgotten before their events",
        OnceGate,
        "old = now - max(self.rule.retention, self.rule.duration)",
        "old = now - self.rule.retention",
        {"retention": 0},
    ),
    Mutant(
        "a full gate takes one more",
        OnceGate,
        "if len(self.seen) >= self.rule.max_pending",
        "if len(self.seen) > self.rule.max_pending",
        {"max_pending": 1, "kinds": 5},
    ),
    Mutant(
        "the clock of the server goes back",
        OnceGate,
        "self.now = now = max(now, self.now)",
        "self.now = now",
        {"steps": (-(10**9),), "failovers": 0},
    ),
    Mutant(
        "a snapshot is not atomic with its clock",
        OnceGate,
        "now = self.advance(now)\n        return Snapshot(self.clock, now,",
        "before, now = self.clock - len(self.pending) % 2, self.advance(now)\n        return Snapshot(before, now,",
        STRICT,
    ),
    Mutant(
        "a gap in the log is ignored",
        OnceGate,
        "return None\n        return [self.log",
        "since = oldest\n        return [self.log",
        {"retention": 0},
    ),
    # the engine
    Mutant(
        "only a submit publishes: ends are lost when all are killed",
        MemoryGate,
        "shared.core.advance(shared.now())",
        "pass",
        STRICT,
    ),
    Mutant(
        "waiters are not woken",
        MemoryGate,
        "if shared.core.clock != before:\n                    shared.wake_all()",
        "pass",
        {**ONLY, "near": True, "failovers": 0, "losses": 0},
    ),
    # subscriptions
    Mutant(
        "lines that were written anew are not noticed",
        Subscription,
        "isinstance(last, int) else mark_of(first) == last",
        "isinstance(last, int) else True",
        LOSING,
    ),
    Mutant(
        "news of another server is believed",
        Subscription,
        "if not isinstance(last, tuple):\n            return",
        "if True:\n            return",
        LOSING,
    ),
    Mutant("a new connection is taken for the old one", Subscription, " or log.run != self._run", "", LOSING),
    Mutant(
        "a key frame stands for no line",
        Subscription,
        "self._run, self._last = log.run, mark_of(lines[0])",
        "self._run, self._last = log.run, None",
        LOSING,
    ),
    Mutant(
        "a key frame of another connection is believed",
        Subscription,
        "first.time <= last if",
        "True if",
        LOSING,
    ),
    Mutant(
        "a clock that is behind is not noticed",
        Subscription,
        " and self._since is not None and self._since <= log.clock",
        "",
        {"failovers": 3, "steps": (), "near": False},
    ),
    Mutant(
        "another gate is taken for the same",
        Subscription,
        "same = self._began is None or self._began == log.began",
        "same = True",
        {"losses": 1},
    ),
    # copies
    Mutant("a copy ignores a gap", Replica, "item.clock == self.clock + 1", "item.clock > self.clock"),
    Mutant("a copy keeps what has ended", Replica, "del self._pending[item.id]", "pass"),
    Mutant("a copy keeps what a key frame does not have", Replica, "self._pending = {", "self._pending |= {"),
)


def hunt(mutant: Mutant, worlds: int, first: int = 0) -> tuple[int, Outcome] | None:
    """The first world that shows the fault, as (how many were needed, what happened there); None: not found."""
    parts = mutant.parts()
    for number in range(worlds):
        outcome = run_world(mutant.world(first + number), parts)
        if outcome.wrong:
            return number + 1, outcome
    return None
