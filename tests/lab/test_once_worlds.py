"""The law of gates holds in worlds where everything goes wrong, and every fault that is put in on purpose is found.

A thousand worlds run by command: `python -m headway.lab.once worlds --count 1000`.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from headway.core.once import Change, EventStatus, OnceGate, OnceRule, Submission
from headway.lab.once import World, draw, run_world
from headway.lab.once.audit import Definition, broken, law
from headway.lab.once.mutants import MUTANTS, hunt, rewritten
from headway.lab.once.server import History, Step

REJECTED, SUBMITTED, INVALIDATED, PUBLISHED = EventStatus
CHUNK = 20
WORLDS = 80
"""So many worlds are enough for each mutant, wherever the seeds begin."""

every_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@pytest.mark.parametrize("first", range(0, 4 * CHUNK, CHUNK))
def test_no_world_is_against_the_law(first):
    for seed in range(first, first + CHUNK):
        outcome = run_world(draw(seed))
        assert not outcome.wrong, outcome.world.changed()
        assert outcome.compared > 0


@every_mutant
def test_a_fault_is_found(mutant):
    assert hunt(mutant, WORLDS) is not None


def test_a_mutant_whose_text_is_gone_says_so():
    with pytest.raises(LookupError, match="0 times 'no such line'"):
        rewritten(OnceGate, "no such line", "")


def test_a_seed_is_a_world():
    first, again = (run_world(draw(5)) for _ in range(2))
    assert first == again
    assert run_world(eval(first.world.changed(), {"World": World})) == first


def test_the_draw_reaches_the_corners():
    worlds = [draw(seed) for seed in range(500)]
    corners = {
        "one process": lambda w: w.processes == 1,
        "room for one event": lambda w: w.max_pending == 1,
        "one kind of event": lambda w: w.kinds == 1,
        "answers are kept as long as they must be": lambda w: w.retention == 0,
        "a copy of a message comes after its answer is forgotten": lambda w: w.longest > w.kept,
        "exactly the duration apart": lambda w: w.tick == w.duration // 4,
        "a clock that is set back": lambda w: min(w.steps, default=0) < 0,
        "a clock that is set forward": lambda w: max(w.steps, default=0) > w.duration,
        "a failover and a loss": lambda w: w.failovers and w.losses,
        "a restart and cut connections": lambda w: w.restarts and w.cuts,
        "no process looks": lambda w: w.strict and not w.looks and w.silent,
        "a subscriber in the server's process": lambda w: w.near,
        "every moment a process is killed": lambda w: w.killed == 1.0,
        "only": lambda w: not w.strict,
    }
    least = {name: sum(map(bool, map(is_there, worlds))) for name, is_there in corners.items()}
    assert {name: count for name, count in least.items() if count < 10} == {}


# -- the judge itself


def steps_of(*submissions):
    return [Step(at * 1000, "submit", (event, id, None), None) for at, event, id in submissions]


@pytest.mark.parametrize(
    ("strict", "published"), [(False, ["1", "2", "7"]), (True, ["1", "7"])], ids=["only", "strict"]
)
def test_the_definition_gives_the_examples_that_it_grew_from(strict, published):
    definition = Definition(OnceRule(3000, strict, 10, 0))
    came = ((1, "pizza"), (2, "taco"), (3, "taco"), (4, "taco"), (7, "taco"))
    accepted = [
        definition.answer(step)[0] for step in steps_of(*((at, event, str(at)) for at, event in came))
    ]
    definition.answer(Step(100_000, "snapshot", (), None))
    assert accepted == [True, True, False, False, True]
    assert [line.id for line in definition.lines if line.status == PUBLISHED] == published


def change(clock, status, id, time=0):
    return Change(clock, status, id, id, None, time)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([change(2, SUBMITTED, "a"), change(3, PUBLISHED, "a")], "clock 2 in place 1"),
        ([change(1, SUBMITTED, "a", 5), change(2, PUBLISHED, "a", 4)], "earlier"),
        ([change(1, PUBLISHED, "a")], "before it was submitted"),
        ([change(1, SUBMITTED, "a"), change(2, PUBLISHED, "a"), change(3, PUBLISHED, "a")], "ended twice"),
        ([change(1, SUBMITTED, "a"), change(2, PUBLISHED, "a"), change(3, INVALIDATED, "a")], "ended twice"),
        ([change(1, SUBMITTED, "a"), change(2, SUBMITTED, "a")], "submitted twice"),
        ([change(1, SUBMITTED, "a")], "never ended"),
    ],
)
def test_the_law_is_broken_by_each_of_these(lines, problem):
    assert any(problem in found for found in law(tuple(lines), kept=10))


def test_an_answer_or_a_line_that_should_be_another_is_told():
    rule = OnceRule(3000, True, 10, 0)
    (step,) = steps_of((1, "a", "1"))
    right = Submission(True, "1", 1, 4000)
    line = change(1, SUBMITTED, "1", 1000)._replace(event="a")

    def problems(answer, *lines):
        return list(broken(rule, History((step._replace(answer=answer),), lines), ended=False))

    assert problems(right, line) == []
    assert "instead of" in problems(right._replace(due=1), line)[0]
    assert "instead of" in problems(right, line._replace(value="v"))[0]
    assert problems(right) == ["0 lines instead of 1"]


def test_the_command_says_what_it_found():
    command = [sys.executable, "-m", "headway.lab.once", "worlds", "--count", "2", "--seed", "3"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert found.stdout.endswith("2 worlds, 0 of them against the law\n")
