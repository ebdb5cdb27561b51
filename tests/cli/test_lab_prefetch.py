# mypy: disable-error-code="arg-type"
"""`headway lab prefetch`: its table says what the library measures, and it says what is wrong with its input."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.app import app
from headway.cli.lab_prefetch import figures, limit_of, weights_of
from headway.core.limits import Window
from headway.lab.leases.trial import Plan

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = re.compile(r"^```\n\$ headway (lab prefetch [^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def prefetch(*args):
    return CliRunner().invoke(app, ["lab", "prefetch", *args])


def rows(output):
    """The cells of each row of the table."""
    lines = [line for line in output.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_help_of_the_lab_lists_it():
    help_text = CliRunner().invoke(app, ["lab", "--help"]).output
    assert "prefetch" in help_text
    assert "lease parts of a limit" in help_text
    own = prefetch("--help").output
    for option in ("--clients", "--demand", "--latency", "--windows", "--ttl", "--seed", "--picture"):
        assert option in own


def test_the_table_has_the_figures_of_the_library():
    result = prefetch("20/s", "--clients", "3:1", "--demand", "0.9,1.1,10")
    assert result.exit_code == 0, result.output
    plan = Plan(Window(20, per=1, remote=False), (3, 1))
    found = rows(result.stdout)
    for at, demand in enumerate((0.9, 1.1, 10)):
        for row, track in (
            (found[2 * at], plan.leases(20 * demand)),
            (found[2 * at + 1], plan.original(20 * demand)),
        ):
            texts = [re.sub(r"\[.*?\]", "", text) for text in figures(plan, track)]
            assert row[2:] == texts
    assert [row[1] for row in found] == ["leases", "original"] * 3
    assert found[2][0] == "1.1 x = 22/s"


@pytest.mark.parametrize(
    ("limit", "column", "rows_each"),
    [
        ("20/s", "most in any 1 s", 2),
        ("1200/minute", "most in any 1 minute", 2),
        ("20/s burst 5", "most beyond the rate", 2),
        ("50/10s aligned", "most in a window", 2),
        ("5 concurrent", "most at once", 1),
    ],
)
def test_every_limit_that_can_be_lent(limit, column, rows_each):
    result = prefetch(*limit.split(), "--windows", "3", "--demand", "1,30/s")
    assert result.exit_code == 0, result.output
    assert column in result.stdout
    assert len(rows(result.stdout)) == 2 * rows_each
    assert result.stderr == "", "in a file there is no progress"
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_random_times_are_compared_with_what_the_limit_itself_admits():
    first = prefetch("20/s", "--demand", "1", "--seed", "4")
    assert [row[1] for row in rows(first.stdout)] == ["leases", "no leases", "original"]
    assert first.stdout == prefetch("20/s", "--demand", "1", "--seed", "4").stdout
    assert rows(first.stdout) != rows(prefetch("20/s", "--demand", "1", "--seed", "5").stdout)


@pytest.mark.parametrize(("demands", "drawn"), [("10,2,1.1,1", "22/s"), ("0.5,1,0.9", "20/s")])
def test_the_picture_is_of_the_smallest_demand_above_the_limit_or_of_the_largest(demands, drawn, tmp_path):
    place = tmp_path / "x.svg"
    assert prefetch("20/s", "--demand", demands, "--picture", str(place)).exit_code == 0
    assert f'aria-label="20/s shared by 2 clients, demand {drawn}"' in place.read_text(encoding="utf-8")


def test_a_limit_of_nothing():
    result = prefetch("0/s", "--demand", "100/s")
    assert result.exit_code == 0
    assert rows(result.stdout)[0][:4] == ["100/s", "leases", "0 of 0", "0 of 0"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["1 every 6s"], "it has one slot at a time, and nothing that could be lent ahead"),
        (["10/s; 5 concurrent"], 'try them one by one: "10/s", "5 concurrent"'),
        (["20/foo"], "unknown unit 'foo'"),
        (["0/s"], 'give the demand as a rate, such as "100/s"'),
        (["20/s", "--clients", "0"], "give 1 to 10,000 clients"),
        (["20/s", "--clients", "3:0"], "each with a weight of at least 1"),
        (["20/s", "--clients", "many"], '"8" nor weights such as "3:1"'),
        (["20/s", "--demand", "1,,2"], 'nor a rate such as "30/s"'),
        (["20/s", "--demand", "3/x"], "unknown unit 'x'"),
        (["20/s", "--demand", "0/s"], "there is nothing to try"),
        (["20/s", "--demand", "-1"], "multiples of the limit from 0.001 to 1000"),
        (["20/s", "--demand", "1/day"], "give more demand, or fewer clients"),
        (["20/s", "--latency", "5"], "a unit is missing"),
        (["20/s", "--ttl", "1us"], "give at least 1ms"),
        (["20/s", "--windows", "0"], "greater than or equal to 1"),
        (["1000000/s"], "give fewer windows, a smaller --demand, or a longer --ttl"),
        (["1000000/month aligned"], "would take too long"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_wrong_input_is_told_with_what_to_do(args, message):
    result = prefetch(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_words_become_a_limit_and_clients():
    assert limit_of(["20/s"]) == Window(20, per=1, remote=False)
    assert weights_of("3") == (1, 1, 1)
    assert weights_of("8:1") == (8, 1)


def test_an_interrupt_is_told_in_a_word(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Plan, "original", interrupted)
    result = prefetch("20/s")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "\nstopped\n", "")


def test_a_fleet_above_the_limit_is_a_failure(monkeypatch):
    """Leases never are: here the original stands in for them."""
    monkeypatch.setattr(Plan, "leases", Plan.original)
    result = prefetch("20/s", "--demand", "10")
    assert result.exit_code == 1
    assert rows(result.stdout)[0][3] == "62 of 20"


def test_the_docs_show_what_the_command_prints(tmp_path, monkeypatch):
    """If it fails: run the commands of docs/prefetch.md in docs/ and put in what they print."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "img").mkdir()
    monkeypatch.setitem(os.environ, "COLUMNS", "80")
    shown = COMMAND.findall((DOCS / "prefetch.md").read_text(encoding="utf-8"))
    assert len(shown) >= 2
    for command, output in shown:
        result = CliRunner().invoke(app, shlex.split(command))
        assert result.exit_code == 0
        assert [line.rstrip() for line in result.stdout.splitlines()] == output.splitlines()
    (picture,) = (tmp_path / "img").iterdir()
    assert (DOCS / "img" / picture.name).read_text(encoding="utf-8") == picture.read_text(encoding="utf-8")


def test_the_docs_say_what_each_change_does():
    """The rows of "the same with": an option is added to the command above, a limit takes the place of its limit."""
    page = (DOCS / "prefetch.md").read_text(encoding="utf-8")
    words = shlex.split(COMMAND.findall(page)[0][0])
    table = page.split("| the same with |")[1].split("\n\n")[0]
    changes = re.findall(r"^\| (?:`(.*?)`|nothing changed) \| (.*?) \| (.*?) \|$", table, re.MULTILINE)
    assert len(changes) == 5
    for change, passed, calls in changes:
        limit = words[2] if change.startswith("--") or not change else change
        more = shlex.split(change) if change.startswith("--") else []
        told = prefetch(limit, *words[3:], "--demand", "0.9", *more)
        assert told.exit_code == 0, told.output
        row = rows(told.stdout)[0]
        assert (row[2], row[4]) == (passed, calls), change
