# mypy: disable-error-code="var-annotated, arg-type"
"""Processes that submit events and are killed, a server that is killed and restarts, and copies that follow it all.

    PYTHONPATH=tests python -m tests.redis.once_storm --seconds 60 --seed 1

Four processes submit to a strict gate and to an `only` gate, each submission under an id that is used again until there
is an answer. One of them at a time is killed with SIGKILL and replaced; now and then the server is killed too, and
comes back with its append-only file. Copies of both gates follow: one with a single subscription through everything,
one that loses its connection and resumes, again and again. Another thread takes snapshots of the server.

Judged are the law; that every event which a process was told is accepted has ended; that the copies were handed every
change in order; and that they equal the server's snapshot at every value of the clock at which one was taken.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.redis.servers import Server, eventually
from tests.redis.workers import Crew

from headway import Change, EngineUnavailable, EventStatus, Once, Snapshot
from headway.once import Replica
from waiting import NEVER

REJECTED, SUBMITTED, INVALIDATED, PUBLISHED = EventStatus
GATES = {"strict": 0.06, "only": 0.1}

WORK = """
import random, uuid
record = os.open({record!r}, os.O_WRONLY | os.O_APPEND)
gates = {{
    mode: Once(duration, mode, name="storm " + mode, engine={url!r}, engine_timeout=2)
    for mode, duration in {gates!r}.items()
}}
say("works")
while True:
    mode, event, id = random.choice(list(gates)), random.choice("abcdefghij") * random.randrange(1, 7), uuid.uuid4().hex
    while True:
        try:
            answer = gates[mode].submit(event, id=id, value=mode)
            break
        except EngineUnavailable:
            time.sleep(0.02)
    os.write(record, f"{{mode}} {{id}} {{int(answer.accepted)}} {{answer.clock}}\\n".encode())
    time.sleep(random.random() * 0.02)
"""


def check_law(changes, accepted=()):
    """Clock values without gaps, one beginning and then one end for each event; returns what became of each."""
    assert [change.clock for change in changes] == list(range(1, len(changes) + 1))
    assert all(before.time <= after.time for before, after in itertools.pairwise(changes))
    states = {}
    for change in changes:
        assert (change.status == SUBMITTED) == (change.id not in states), "one beginning"
        assert states.get(change.id, SUBMITTED) == SUBMITTED, "one end"
        states[change.id] = change.status
    assert set(accepted) <= set(states)
    return states


class Copy:
    """A thread that keeps a replica, through every outage; one that is `flighty` ends its subscription at random."""

    def __init__(self, gate, mode, dice=None):
        self.gate, self.dice = gate, dice
        self.replica = Replica(GATES[mode], mode)
        self.found, self.states = [], {}
        self.key_frames = self.resumes = self.outages = 0
        self.ended = False
        self.error = None
        self.subscription = gate.subscribe(0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            while not self.ended:
                try:
                    self._follow()
                except EngineUnavailable:
                    self.outages += 1
                    time.sleep(0.02)
        except BaseException as error:  # noqa: BLE001 - the storm's own thread reports it
            self.error = error

    def _follow(self):
        for item in self.subscription:
            if not self.replica.apply(item):
                raise AssertionError(f"{self.replica} cannot apply {item}")
            self.states[self.replica.began, self.replica.clock] = self.replica.pending
            self.key_frames += isinstance(item, Snapshot)
            self.found += [item] if isinstance(item, Change) else []
            if self.dice is not None and self.dice.random() < 0.02:
                self.subscription.close()
                time.sleep(self.dice.choice((0, 0.05, 0.4)))
                self.subscription = self.gate.subscribe(self.replica.since)
                self.resumes += 1
                return

    def close(self):
        self.ended = True
        self.subscription.close()
        self.thread.join(NEVER)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error


class Viewer:
    """A thread that takes snapshots of the server."""

    def __init__(self, gates):
        self.gates = gates
        self.views = {mode: {} for mode in gates}
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.ended.wait(0.01):
            for mode, gate in self.gates.items():
                with contextlib.suppress(EngineUnavailable):
                    view = gate.snapshot()
                    self.views[mode][view.began, view.clock] = view.pending

    def close(self):
        self.ended.set()
        self.thread.join(NEVER)


@dataclass
class Outcome:
    """What a storm has shown. Whatever is against the law has raised by then."""

    changes: dict[str, int] = field(default_factory=dict)
    submitted: int = 0
    accepted: int = 0
    kills: int = 0
    restarts: int = 0
    resumes: int = 0
    outages: int = 0
    snapshots: int = 0
    compared: int = 0

    def __str__(self):
        changes = ", ".join(f"{count} at the {mode} gate" for mode, count in self.changes.items())
        return (
            f"{self.submitted} submissions answered, {self.accepted} accepted; changes: {changes}\n"
            f"{self.kills} processes killed, the server killed and restarted {self.restarts} times\n"
            f"copies: {self.resumes} resumed, {self.outages} outages, {self.snapshots} snapshots of the server, "
            f"{self.compared} states compared with one, all equal\n"
            "the law holds: no gap, one beginning and one end for each event, every accepted event has ended"
        )


def storm(server, seconds, seed, *, workers=4):
    """Run it against a server that keeps an append-only file; an `Outcome`, or an `AssertionError`."""
    outcome, dice = Outcome(), random.Random(seed)
    handle, record = tempfile.mkstemp(prefix="headway-storm-")
    os.close(handle)
    script = WORK.format(record=record, url=server.url, gates=GATES)
    with contextlib.ExitStack() as stack:
        stack.callback(Path(record).unlink)
        crew = stack.enter_context(Crew())
        alive = [crew.start(server.url, script) for _ in range(workers)]
        for worker in alive:
            worker.hear()
        gates = {
            mode: Once(duration, mode, name=f"storm {mode}", engine=server.url, engine_timeout=2)
            for mode, duration in GATES.items()
        }
        for gate in gates.values():
            stack.callback(gate.close)
        viewer = Viewer(gates)
        steady = {mode: Copy(gate, mode) for mode, gate in gates.items()}
        flighty = {mode: Copy(gate, mode, random.Random(seed + 1)) for mode, gate in gates.items()}
        _rage(server, alive, lambda: crew.start(server.url, script), seconds, dice, outcome)
        for worker in alive:
            assert worker.process.poll() is None, worker.errors
        for worker in crew.workers:
            worker.close()
        eventually(lambda: not gates["strict"].snapshot().pending, "all ended")
        viewer.close()
        told = [line.split() for line in Path(record).read_text().splitlines()]
        outcome.submitted, outcome.accepted = len(told), sum(line[2] == "1" for line in told)
        for mode, gate in gates.items():
            answers = {id: int(clock) for of, id, accepted, clock in told if of == mode and accepted == "1"}
            _judge(gate.changes(), answers, steady[mode], flighty[mode], viewer.views[mode], outcome)
            outcome.changes[mode] = gate.snapshot().clock
    return outcome


def _rage(server, alive, start, seconds, dice, outcome):
    """Kill processes, and the server now and then."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        time.sleep(min(dice.uniform(0.2, 0.8), end - now))
        if dice.random() < 0.25 or not outcome.restarts:
            server.kill()
            time.sleep(dice.choice((0, 0.1, 0.5)))
            server.restart()
            outcome.restarts += 1
        victim = alive.pop(dice.randrange(len(alive)))
        assert victim.process.poll() is None, victim.errors
        victim.kill()
        outcome.kills += 1
        alive.append(start())


def _judge(changes, answers, steady, flighty, views, outcome):
    states = check_law(changes, answers)
    assert set(states.values()) <= {PUBLISHED, INVALIDATED}, "every accepted event has ended"
    for id, clock in answers.items():
        assert (changes[clock - 1].id, changes[clock - 1].status) == (id, SUBMITTED)
    began, outcome.snapshots = changes[-1].began, outcome.snapshots + len(views)
    for copy in (steady, flighty):
        eventually(lambda copy=copy: copy.replica.clock >= len(changes) or copy.error, "the copy arrives")
        copy.close()
        assert copy.found == changes, "every value in order, through all that happened"
        assert copy.key_frames == 0, "nothing was lost"
        assert copy.states[began, len(changes)] == ()
        for at in copy.states.keys() & views.keys():
            assert copy.states[at] == views[at], f"the copy at {at} is not the server's snapshot"
            outcome.compared += 1
        outcome.resumes += copy.resumes
        outcome.outages += copy.outages


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with Server("valkey", appendonly="yes", appendfsync="always") as server:
        outcome = storm(server, options.seconds, options.seed)
    sys.stdout.write(f"{outcome}\n")


if __name__ == "__main__":
    main()
