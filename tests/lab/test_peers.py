"""Other libraries in the same world, the picture of it, and the command that shows both."""

from __future__ import annotations

import time
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from headway.cli.app import app
from headway.lab.clocks import BILLION
from headway.lab.mutants import MUTANTS, hunt
from headway.lab.peers import PEERS, compete, present
from headway.lab.plot import draw as draw_plot
from headway.lab.worlds import World, with_clocks


def everyday(seed=1, events=300):
    spans: dict[str, Any] = {"out_more": 100_000_000, "back_more": 100_000_000, "max_transit": 2 * BILLION}
    return with_clocks(World(seed=seed, events=events, workers=40, **spans), Random(seed))


def test_headway_keeps_the_limit_and_reaches_the_ceiling():
    score = compete("headway", everyday(events=3_000))
    assert (score.verdict.violations, score.worst) == (0, 10)
    assert 0.99 < score.share <= 1.005


@pytest.mark.parametrize("name", [name for name in present()[0] if name != "headway"])
def test_a_peer_runs_in_virtual_time(name):
    """It sends at about its rate, without waiting in real time; what it is worth is in the docs."""
    score = compete(name, everyday(events=200))
    assert score.events >= 200
    assert 0.8 < score.share < 1.3


def test_time_is_given_back():
    before = time.time
    compete(present()[0][-1], everyday(events=20))
    assert time.time is before
    assert set(present()[0] + present()[1]) == set(PEERS)


def test_the_picture_marks_what_was_too_much():
    world = everyday()
    rows = [compete(name, world) for name in ("headway", "headway without remote")]
    picture = draw_plot(rows, world)
    texts = [node.text for node in ET.fromstring(picture).iter() if node.text and node.text.strip()]
    assert any(text.startswith("headway: none too many, at most 10") for text in texts)
    assert picture.count("#c0392b") > 5


def test_the_command(tmp_path):
    drawn = tmp_path / "out.svg"
    told = CliRunner().invoke(
        app,
        [
            "lab",
            "window",
            "--n",
            "5",
            "--per",
            "2s",
            "--worlds",
            "60",
            "--events",
            "100",
            "--picture",
            str(drawn),
        ],
    )
    assert told.exit_code == 0, told.output
    assert "headway: no worlds of 60" in told.output
    assert "0 │" in told.output
    assert drawn.read_text().startswith("<svg")


def test_the_command_tells_a_failing_seed(monkeypatch):
    mutant = MUTANTS[4]
    found = hunt(mutant, 250)
    assert found is not None
    monkeypatch.setattr("headway.cli.lab.run_world", mutant.run)
    monkeypatch.setattr("headway.cli.lab.shrink", lambda world: world)
    told = CliRunner().invoke(
        app, ["lab", "window", "--worlds", str(found[0]), "--events", "300", "--no-peers"]
    )
    assert told.exit_code == 1
    assert "reduced" in told.output
    assert "replay: World(seed=" in told.output


def test_a_picture_that_cannot_be_written_is_told_below_the_table(tmp_path):
    place = tmp_path / "nowhere" / "out.svg"
    told = CliRunner().invoke(
        app, ["lab", "window", "--worlds", "0", "--events", "20", "--no-peers", "--picture", str(place)]
    )
    assert (told.exit_code, told.stderr) == (1, f"headway: {place}: No such file or directory\n")
    assert "of the safe ceiling" in told.stdout


@pytest.mark.parametrize("option", ["--per", "--latency"])
def test_the_command_refuses_nonsense(option):
    told = CliRunner().invoke(app, ["lab", "window", option, "soon"])
    assert told.exit_code == 2
    assert f"Invalid value for '{option}'" in told.stderr
