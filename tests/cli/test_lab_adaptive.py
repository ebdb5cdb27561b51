"""`headway lab adaptive`."""

from xml.etree import ElementTree as ET

from typer.testing import CliRunner

from headway.cli.app import app


def test_the_command_plays_a_world_and_draws_it(tmp_path):
    place = tmp_path / "world.svg"
    result = CliRunner().invoke(app, ["lab", "adaptive", "--seed", "12", "--picture", str(place)])
    assert result.exit_code == 0, result.output
    assert all(name in result.output for name in ("world 12", "headway", "AWS", "AIMD", "wrote"))
    root = ET.fromstring(place.read_text())
    texts = "".join(root.itertext())
    assert texts.count("of the limit used") == 3
    assert len(root.findall("{http://www.w3.org/2000/svg}path")) >= 3 * 5


def test_a_picture_is_svg(tmp_path):
    result = CliRunner().invoke(app, ["lab", "adaptive", "--picture", str(tmp_path / "world.png")])
    assert result.exit_code == 2
