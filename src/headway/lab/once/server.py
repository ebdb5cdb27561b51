"""The server of a world: the gate as the engine in this process keeps it, a clock, and everything that was done to it.

What the server does is written down in two ways. *Steps* are the commands in the order in which they were carried out,
each with its time and its answer: from them alone the audit works out what should have happened. *Nodes* are the lines
of the log, each with the line before it and with what was pending after it. A failover that loses lines makes the nodes
a tree: a subscriber that goes from one node to another that does not follow on it has been given a hidden gap.

Four things go wrong with a server:

    restart     it is away for a while, and then has all of its state (an append-only file)
    failover    it is the replica that goes on, without the last lines; its clock is not behind
    loss        it has nothing any more: a gate that begins anew
    step        its clock is set forward or back
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.core.once import SUBMITTED, Change, OnceGate, OnceRule
from headway.engines.base import GateView
from headway.engines.memory.gates import MemoryGate, SharedGate
from headway.errors import GateFull, IdReused
from headway.lab.clocks import Skewed, TaskClock
from headway.once.results import Pending

if TYPE_CHECKING:
    import asyncio

    from headway.lab.once.clients import Listener
    from headway.testing import ManualClock

EPOCH = 1_700_000_000_000_000_000


class Step(NamedTuple):
    """A command that the server carried out."""

    time: int
    verb: str
    arguments: tuple[Any, ...]
    answer: Any


class Node:
    """The gate after one line of its log; without a line, as it began."""

    __slots__ = ("began", "change", "clock", "parent", "pending")

    def __init__(
        self, began: int, parent: Node | None = None, change: Change | None = None, due: int = 0
    ) -> None:
        self.began, self.parent, self.change = began, parent, change
        self.clock = 0 if change is None else change.clock
        pending = () if parent is None else parent.pending
        if change is None:
            self.pending: tuple[Pending, ...] = ()
        elif change.status == SUBMITTED:
            time = change.time / 1e9
            event = Pending(
                change.id, change.event, change.value, time, (change.time + due) / 1e9, change.clock
            )
            self.pending = (*pending, event)
        else:
            self.pending = tuple(event for event in pending if event.id != change.id)


class History(NamedTuple):
    """One gate from its beginning: all that was done, and what it wrote."""

    steps: tuple[Step, ...]
    lines: tuple[Change, ...]


class ServerClock(TaskClock):
    """A clock that drifts and ticks, and can be set."""

    offset = 0

    def now(self) -> int:
        return super().now() + self.offset

    def wall(self) -> int:
        return self.now() + EPOCH

    async def park_async(self, waker: asyncio.Future[None], until_ns: int | None) -> None:
        await super().park_async(waker, None if until_ns is None else until_ns - self.offset)


class WorldGate(SharedGate):
    """The gate of the engine in this process, with a core that may be a mutant."""

    def __init__(self, clock: ServerClock, rule: OnceRule, kind: type[OnceGate]) -> None:
        self.kind = kind
        super().__init__(None, clock, rule)

    def begin(self, rule: OnceRule) -> None:
        super().begin(rule)
        self.core = self.kind(rule)


class Server:
    """A gate on a server. `execute` carries a command out."""

    def __init__(
        self,
        true: ManualClock,
        skewed: Skewed,
        rule: OnceRule,
        kind: type[OnceGate] = OnceGate,
        engine: type[MemoryGate] = MemoryGate,
    ) -> None:
        self.rule = rule
        self.clock = ServerClock(true, skewed, 0, [0])
        self.shared = WorldGate(self.clock, rule, kind)
        self.gate = engine(self.shared)
        self.up = True
        self.listeners: list[Listener] = []
        self.steps: list[Step] = []
        self.nodes: dict[tuple[Any, ...], Node] = {}
        self.views: dict[tuple[Any, ...], Node] = {}
        self.ended: list[History] = []
        self.wrong: list[str] = []
        self._begin()

    def _begin(self) -> None:
        self.steps = []
        self.tip = Node(self.shared.began)
        # A subscriber is told of a beginning by a key frame that the server did not make.
        self.views[self.shared.began / 1e9, 0, self.shared.began / 1e9, ()] = self.tip
        self.replicate()

    # -- commands ----------------------------------------------------------------------------------------

    def execute(self, verb: str, *arguments: Any) -> Any:
        """Carry a command out; an error is returned, not raised."""
        time = self.shared.now()
        try:
            answer = getattr(self.gate, verb)(*arguments)
        except (GateFull, IdReused) as error:
            answer = error
        self.steps.append(Step(time, verb, arguments, answer))
        self.note()
        if isinstance(answer, GateView):
            self._note_view(answer)
        return answer

    def note(self) -> None:
        """Write down the lines that are new, and tell the listeners."""
        new = [line for line in self.shared.core.log if line.clock > self.tip.clock]
        if not new:
            return
        due = self.rule.duration if self.rule.strict else 0
        for line in new:
            self.tip = Node(self.shared.began, self.tip, line, due)
            self.nodes[self.shared.began / 1e9, *line[:3], line.time / 1e9] = self.tip
        next_due = self.shared.core.next_due()
        wait = None if next_due is None else next_due - self.shared.now()
        for listener in self.listeners:
            listener.push(self.shared.began, new, wait)

    def _note_view(self, view: GateView) -> None:
        snapshot, tip = view.snapshot, self.tip
        pending = tuple(
            Pending(*one[:3], one.time / 1e9, one.due / 1e9, one.clock) for one in snapshot.pending
        )
        if snapshot.clock != tip.clock or pending != tip.pending:
            self.wrong.append(f"a snapshot of clock {snapshot.clock} is not the state there")
        self.views[view.began / 1e9, snapshot.clock, snapshot.time / 1e9, pending] = tip

    # -- what goes wrong ---------------------------------------------------------------------------------

    def replicate(self) -> None:
        """The replica is as far as the server from now on, and stays there until the next time."""
        core = copy(self.shared.core)
        for name in ("pending", "seen", "log", "answers"):
            setattr(core, name, copy(getattr(core, name)))
        self.copy = core, len(self.steps), self.tip

    def cut(self) -> None:
        """Every connection ends."""
        for listener in list(self.listeners):
            listener.lost()

    def failover(self) -> int:
        """The replica goes on; how many lines are lost."""
        core, steps, tip = self.copy
        lost = self.tip.clock - tip.clock
        if len(self.steps) > steps:
            self.ended.append(self.history())
        self.shared.core, self.tip = core, tip
        del self.steps[steps:]
        self.replicate()
        for listener in list(self.listeners):
            listener.orphaned()
        return lost

    def lose(self) -> None:
        """Nothing is left."""
        self.ended.append(self.history())
        self.shared.begin(self.rule)
        self._begin()
        self.cut()
        self.shared.wake_all()

    def history(self) -> History:
        lines, node = [], self.tip
        while node.change is not None:
            lines.append(node.change)
            assert node.parent is not None
            node = node.parent
        return History(tuple(self.steps), tuple(reversed(lines)))
