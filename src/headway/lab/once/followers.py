"""A copy of a gate somewhere else, and the judge of all that it is given.

Two things are judged as they happen. What a subscription hands out follows on what it handed out before, or is a key
frame of the server: no gap is hidden. And the copy equals the server's state at the value of the clock that it is at,
although a relay between the two loses changes, repeats them and swaps them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headway.lab.once.server import Node, Server
from headway.once import Change, Replica, Snapshot


@dataclass(slots=True)
class Follower:
    """A copy, and the nodes of the server's log to which the items that it was given belong."""

    name: str
    near: bool
    replica: Replica
    server: Server
    rng: Random
    fault: Callable[[str], None]
    node: Node | None = None  # of what the subscription handed out last
    nodes: dict[Any, Node] = field(default_factory=dict)
    held: list[Change] = field(default_factory=list)  # by the relay
    compared: int = 0
    key_frames: int = 0

    def connect(self) -> Change | Snapshot | None:
        """What the next subscription goes on from."""
        since = self.replica.since
        self.node = None if since is None else self.nodes[since]
        self.held = []
        return since

    def handed_out(self, item: Change | Snapshot, *, faithful: bool) -> None:
        """Judge what a subscription handed out, and pass it on to the copy."""
        if isinstance(item, Snapshot):
            self.key_frames += 1
            node = self.server.views.get((item.began, item.clock, item.time, item.pending))
            if node is None:
                self.fault(f"{self.name}: a key frame of clock {item.clock} that the server never made")
        else:
            node = self.server.nodes.get((item.began, item.clock, item.status, item.id, item.time))
            if node is None:
                self.fault(f"{self.name}: change {item.clock} never happened")
            elif self.node is not None and node.parent is not self.node:
                before = self.node.clock
                self.fault(
                    f"{self.name}: change {item.clock} came after {before}, on which it does not follow"
                )
        self.node = node
        if node is not None:
            self.nodes[item] = node
            self._relay(item, 1.0 if faithful else self.rng.random())

    def _relay(self, item: Change | Snapshot, luck: float) -> None:
        """To the copy: changes may be lost, come twice, or be overtaken by the next."""
        if isinstance(item, Snapshot):
            self.held = []
            self._apply(item)
        elif luck < 0.02:
            return
        elif luck < 0.04 and not self.held:
            self.held.append(item)
            return
        else:
            self._apply(item)
            if luck < 0.08:
                self._apply(item)
        for late in self.held:
            self._apply(late)
        self.held = []

    def _apply(self, item: Change | Snapshot) -> None:
        replica = self.replica
        if not replica.apply(item):
            return
        self.compared += 1
        if replica.since is not item:
            self.fault(f"{self.name}: applied change {item.clock}, and is at {replica.clock}")
        if replica.pending != self.nodes[item].pending:
            self.fault(f"{self.name}: the copy at clock {replica.clock} is not the gate there")

    def arrived(self) -> bool:
        """Whether the copy is the server's state now."""
        replica, tip = self.replica, self.server.tip
        there = (replica.clock, replica.began) == (tip.clock, tip.began / 1e9)
        return there and replica.pending == tip.pending
