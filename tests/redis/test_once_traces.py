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
        status, (said,) = self.ask(now, "submit", b"".join(body(*event) for event in events))
        assert status == 0
        answers = []
        for event, id, _ in events:
            outcome, clock, due, length = unpack("<BddI", said[:21])
            text = said[22 : 21 + length].decode()
            answers.append(partial(self._answer, outcome, clock, due, text, event, id))
            said = said[21 + length :]
        assert not said
        return answers

    def _answer(self, outcome, clock, due, text, event, id):
        if outcome == 5:
            raise GateFull(self.rule.max_pending, due / 1e9)
        if outcome == 4:
            raise IdReused(id, text, event)
        return Submission(outcome == 1, id, int(clock), int(due), text or None)

    def status(self, now, id):
        _, said = self.ask(now, "status", f"i{id}")
        return EventStatus(said[0][0]) if said else None

    def changes(self, since):
        status, said = self.ask(self.now, "changes", since, 1000)
        return None if status == 2 else [self._line(line) for line in said[1]]

    def _line(self, line):
        clock, time, status = unpack("<ddB", line[:17])
        id, event, value = texts(line[17:])
        return Change(int(clock), EventStatus(status), id, event, value, int(time))

    def snapshot(self, now):
        """In parts of three: nothing happens between them."""
        found, after, end = [], 0, 1
        while after < end:
            _, (place, some) = self.ask(now, "snapshot", int(after), 3)
            after, end = unpack("<dd", place)
            for packed in some:
                time, clock = map(int, unpack("<dd", packed[:16]))
                id, event, value = texts(packed[16:])
                found.append(Pending(id, event, value, time, time + self.rule.duration, clock))
        return self.clock, tuple(found)


def body(event, id, value):
    """What is kept of an event."""
    words = [id.encode(), event.encode(), b"" if value is None else f"={value}".encode()]
    return pack("<3I", *map(len, words)) + b"".join(words)


def texts(packed):
    """An id, an event, and a value or None."""
    one, two, three = unpack("<3I", packed[:12])
    assert len(packed) == 12 + one + two + three
    packed = packed[12:]
    value = packed[one + two :].decode()
    return packed[:one].decode(), packed[one : one + two].decode(), value[1:] if value else None


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
        assert ScriptGate(valkey.client(), f"{{{name}}}", other).ask(START, "status", "i1") == (1, [])
    assert gate.snapshot(START)[0] == 1


def test_nothing_is_left_behind_when_a_gate_is_idle(valkey, name):
    second = 1_000_000
    client, rule = valkey.client(), OnceRule(100 * second, True, 5, 100 * second)
    gate = ScriptGate(client, f"{{{name}}}", rule)
    for number, event in enumerate("abb"):
        gate.submit(0, event, str(number), "value")
    keys = client.keys(f"{{{name}}}*")
    assert len(keys) == 5
    # What it keeps, what is pending after that, and a minute.
    assert all(0 < client.pttl(key) <= 261_000 for key in keys)
