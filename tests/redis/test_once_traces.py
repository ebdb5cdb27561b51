"""The gate of the core and the gate of the script, on the same traces: the same answers, lines and snapshots."""

import random
from functools import partial
from struct import pack, unpack

import pytest

from headway.core.once import Change, EventStatus, OnceGate, OnceRule, Pending, Submission
from headway.engines.redis.script.scripts import plain_script
from headway.errors import GateFull, IdReused

TRACES, STEPS = 13, 200
START = 1_700_000_000_000_000


class ScriptGate:
    """A gate on a server, asked as the core is."""

    def __init__(self, client, root, rule):
        self.rule = rule
        self.call = lambda *words: client.register_script(plain_script("once").text)(keys=[root], args=words)

    def ask(self, now, *words):
        rule = self.rule
        front = pack("<5d", now, rule.duration, rule.strict, rule.max_pending, rule.retention)
        head, *said = self.call(front, *words)
        status, self.now, self.clock, _ = map(int, unpack("<4d", head[:32]))
        return status, said

    def submit(self, now, event, id, value):
        (answer,) = self.submit_all(now, [(event, id, value)])
        return answer()

    def submit_all(self, now, events):
        """One command; for each event a function that returns its answer, or raises it."""
        words = [
            word for event, id, value in events for word in (event, id, "" if value is None else f"={value}")
        ]
        _, said = self.ask(now, "submit", *words)
        return [partial(self._answer, *said[3 * i : 3 * i + 3], *events[i][:2]) for i in range(len(events))]

    def _answer(self, status, said, conflict, event, id):
        status = unpack("<d", status)[0]
        if status == 1:
            raise GateFull(self.rule.max_pending, unpack("<d", said)[0] / 1e9)
        if status == 2:
            raise IdReused(id, said.decode(), event)
        accepted, clock, due = map(int, unpack("<3d", said))
        return Submission(bool(accepted), id, clock, due, conflict.decode() or None)

    def status(self, now, id):
        _, said = self.ask(now, "status", id)
        return EventStatus(int(unpack("<d", said[0])[0])) if said else None

    def changes(self, since):
        status, said = self.ask(self.now, "changes", since, 1000)
        return None if status == 4 else [self._line(line) for line in said[1:]]

    def _line(self, line):
        clock, status, time = map(int, unpack("<3d", line[:24]))
        id, event, value = strings(line[24:])
        return Change(clock, EventStatus(status), id, event, value, time)

    def snapshot(self, now):
        _, (lists,) = self.ask(now, "snapshot", 3)
        found = []
        for packed in (packed for some in lists for packed in some):
            time, due, clock = map(int, unpack("<3d", packed[:24]))
            id, event, value = strings(packed[24:])
            found.append(Pending(id, event, value, time, due, clock))
        return self.clock, tuple(found)


def strings(packed):
    """An id, an event, and a value or None."""
    found = []
    for _ in range(2):
        length = int(unpack("<d", packed[:8])[0])
        found.append(packed[8 : 8 + length].decode())
        packed = packed[8 + length :]
    value = packed.decode()
    return (*found, value[1:] if value else None)


def outcome(verb, *arguments):
    try:
        return verb(*arguments)
    except (GateFull, IdReused) as error:
        return type(error), error.args


@pytest.mark.parametrize("strict", [False, True], ids=["only", "strict"])
def test_core_and_script_agree(valkey, name, strict):
    client, commands = valkey.client(), 0
    for seed in range(TRACES):
        dice = random.Random(seed)
        duration = dice.choice((1, 3, 10, 1_000_000))
        rule = OnceRule(duration, strict, dice.choice((1, 3, 8)), dice.choice((0, 5, 40, 10_000_000)))
        core, script = OnceGate(rule), ScriptGate(client, f"{name}:{{{strict}{seed}}}", rule)
        now = START
        assert core.status(now, "none") is script.status(now, "none") is None
        for step in range(STEPS):
            now += dice.choice((0, 0, 1, 1, 2, duration - 1, duration, duration + 1, -2))
            what = dice.random()
            since = max(0, core.clock - dice.randrange(6))
            if what < 0.7:
                event = dice.choice(("a", "b", "ü\0=", "c" * 50))
                id = str(step if dice.random() < 0.8 else dice.randrange(step + 1))
                value = dice.choice((None, "", "v", "=\0ü"))
                both = [outcome(gate.submit, now, event, id, value) for gate in (core, script)]
            elif what < 0.75:
                events = [
                    (dice.choice(("a", "b", "c", "d")), f"{step}.{number}", None)
                    for number in range(dice.randrange(1, 9))
                ]
                both = [
                    [outcome(core.submit, now, *event) for event in events],
                    [outcome(answer) for answer in script.submit_all(now, events)],
                ]
            elif what < 0.8:
                id = str(dice.randrange(step + 1))
                both = [gate.status(now, id) for gate in (core, script)]
            else:
                snapshot = core.snapshot(now)
                both = [(snapshot.clock, snapshot.pending), script.snapshot(now)]
            assert both[0] == both[1], (seed, step)
            assert core.changes(since) == script.changes(since), (seed, step)
            assert core.clock == script.clock
            commands += 2
    assert commands >= 5_000  # in each mode


def test_a_gate_of_another_kind_is_refused_and_unchanged(valkey, name):
    rule = OnceRule(10, True, 5, 100)
    gate = ScriptGate(valkey.client(), f"{{{name}}}", rule)
    gate.submit(START, "a", "1", None)
    for other in (rule._replace(duration=11), rule._replace(strict=False)):
        assert ScriptGate(valkey.client(), f"{{{name}}}", other).ask(START, "status", "1") == (3, [])
    assert gate.snapshot(START)[0] == 1


def test_nothing_is_left_behind_when_a_gate_is_idle(valkey, name):
    client, rule = valkey.client(), OnceRule(1000, True, 5, 1000)
    gate = ScriptGate(client, f"{{{name}}}", rule)
    gate.submit(0, "a", "1", "value")
    keys = client.keys(f"{{{name}}}*")
    assert len(keys) == 8
    assert all(0 < client.pttl(key) <= 61_000 for key in keys)
