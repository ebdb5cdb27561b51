"""The picture of the ratios: it shows what happens, and the one in the docs is the one that the lab draws."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.app import app
from headway.lab.pacer import RATIOS, draw, simulate

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("ratio", RATIOS)
def test_backlog_grows_while_nothing_starts_and_is_made_up_at_the_ratio(ratio):
    started, backlog = simulate(Fraction(100), ratio)
    assert started[:10] == [10] * 10
    assert started[10:30] == [0] * 20
    assert {after - before for before, after in pairwise(backlog[11:30])} == {10**8}
    caught_up = next((index for index in range(30, 100) if backlog[index] == 0), 100)
    assert all(abs(ops - 10 * ratio) <= 1 for ops in started[31 : caught_up - 1])
    assert started[caught_up + 1 :] == [10] * len(started[caught_up + 1 :])
    assert sum(started) <= 1000


def test_a_picture_is_svg_and_is_not_called_otherwise(tmp_path):
    for command in (
        ["lab", "pacer", "--picture"],
        ["lab", "window", "--worlds", "1", "--picture"],
        ["lab", "prefetch", "20/s", "--picture"],
    ):
        place = tmp_path / "x.png"
        told = CliRunner().invoke(app, [*command, str(place)])
        line = f"headway: {place}: pictures are SVG; give a name that ends in .svg\n"
        assert (told.exit_code, told.stdout, told.stderr) == (2, "", line)
        assert not place.exists()
    for name in ("x.svg", "x.SVG", "x"):
        assert CliRunner().invoke(app, ["lab", "pacer", "--picture", str(tmp_path / name)]).exit_code == 0
        assert (tmp_path / name).read_text(encoding="utf-8") == draw()


def test_every_command_that_draws_calls_its_option_the_same(tmp_path):
    place = tmp_path / "[red]x.svg"
    for command in (
        ["lab", "pacer"],
        ["lab", "window", "--worlds", "0", "--events", "20", "--no-peers"],
        ["lab", "prefetch", "20/s"],
    ):
        told = CliRunner().invoke(app, [*command, "--picture", str(place)])
        assert told.exit_code == 0, told.output
        assert told.stdout.endswith(f"wrote {place}\n"), "as it is, and not taken for markup"
        place.unlink()


def test_the_docs_have_this_picture():
    """If it fails: headway lab pacer --picture docs/img/pacer-ratio.svg."""
    assert (DOCS / "img/pacer-ratio.svg").read_text(encoding="utf-8") == draw()
