"""The command line around the demo: help, version, explanations, and what is said when something is missing."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway import __version__
from headway.cli.app import app


def headway(*args):
    return CliRunner().invoke(app, list(args))


def test_help_lists_the_commands():
    result = headway("--help")
    assert result.exit_code == 0
    assert "demo" in result.output
    assert "explain" in result.output


def test_help_of_the_demo_lists_its_options():
    result = headway("demo", "--help")
    assert result.exit_code == 0
    for option in ("--seconds", "--limit", "--workers", "--latency", "--burst", "--seed"):
        assert option in result.output


def test_help_is_set_for_the_width_of_the_terminal():
    lines = [line.strip() for line in headway("pace", "--help").output.splitlines()]
    first = next(at for at, line in enumerate(lines) if line.startswith("Where stderr"))
    text = lines[first : lines.index("", first)]
    assert all(len(line) > 60 for line in text[:-1])


@pytest.mark.parametrize(("command", "default"), [(["pace"], "1.1"), (["lab", "window"], "drawn")])
def test_help_tells_the_defaults(command, default):
    assert f"[default: {default}]" in headway(*command, "--help").output


def test_version():
    result = headway("--version")
    assert result.exit_code == 0
    assert result.output.startswith(f"headway {__version__} (")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("100/minute", "Never more than 100 in any 1 minute"),
        ("1/6s", "It may go at once"),
        ("100/s burst 20", "So up to 120 pass in 1 s"),
        ("1 every 6s", "One, then none for 6 s"),
        ("10000/day aligned", "10000 per day of the calendar (UTC)"),
        ("5/month aligned Europe/Berlin", "5 per month of the calendar (Europe/Berlin)"),
        ("5 concurrent", "At most 5 at the same time"),
        ("0/s", "Admits nothing"),
        ("10/s; 5 concurrent", "All 2 of these"),
    ],
)
def test_explain(limit, words):
    result = headway("explain", limit)
    assert result.exit_code == 0
    assert words in result.output


def test_a_lab_with_nothing_to_do_says_so():
    result = headway("lab", "window", "--worlds", "0", "--no-peers")
    assert result.exit_code == 2
    assert "nothing to do" in result.stderr


def test_the_command_has_one_name_however_it_was_started():
    assert shell("HEADWAY --help").stdout.split()[:2] == ["Usage:", "headway"]


def test_explain_takes_words_without_quotes():
    assert headway("explain", "100", "per", "90s").output == headway("explain", "100 per 90s").output


def test_explain_points_at_the_mistake():
    result = headway("explain", "5/minuts")
    assert result.exit_code == 2
    assert "did you mean 'minutes'?" in result.stderr
    assert "\n    5/minuts\n      ^\n" in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--limit", "20/foo", "unknown unit 'foo'"),
        ("--limit", "20/s burst 4", "counts in a window"),
        ("--limit", "0/s", "counts in a window"),
        ("--latency", "5", "a unit is missing"),
        ("--workers", "0", "greater than or equal to 1"),
    ],
)
def test_wrong_options_of_the_demo(option, value, message):
    result = headway("demo", option, value)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert f"Invalid value for '{option}'" in result.stderr


full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
COMMANDS = [
    ["explain", "5/s"],
    ["--help"],
    ["--version"],
    ["pace", "500/s"],
    ["demo", "--seconds", "0.5", "--workers", "2"],
    ["lab", "window", "--worlds", "1", "--events", "20", "--no-peers"],
    ["lab", "prefetch", "20/s", "--demand", "1", "--windows", "1"],
]


def shell(command, *words, **environment):
    """Run `headway` with the words in a shell, which says where the output goes."""
    line = shlex.join([sys.executable, "-m", "headway.cli", *words])
    return subprocess.run(
        ["bash", "-c", command.replace("HEADWAY", line)],
        input="a\n" * 3, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment},
    )  # fmt: skip


@full
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_output_that_cannot_be_written_is_told_in_a_line(words, unbuffered):
    done = shell("HEADWAY > /dev/full", *words, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (1, "headway: <stdout>: No space left on device\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_reader_that_leaves_is_told_nothing(words, unbuffered):
    assert shell("HEADWAY | head -0", *words, PYTHONUNBUFFERED=unbuffered).stderr == ""


@pytest.mark.skipif(os.name == "nt", reason="needs a shell that closes files")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_output_that_is_closed_is_told_in_a_line(words):
    done = shell("HEADWAY >&-", *words)
    assert (done.returncode, done.stderr) == (
        1,
        "headway: <stdout> is closed, so there is nowhere to write to\n",
    )
    assert shell("HEADWAY >&- 2>&-", *words).returncode == 1


def test_a_fault_of_a_command_is_not_taken_for_one_of_its_output():
    code = (
        "import headway.cli.app as a, headway.cli as c\n"
        "def fail(): raise OSError(28, 'No space left on device')\n"
        "a.app = fail; c.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from headway.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == (
        f"headway: the command line needs {missing}; install it with: pip install 'headway[cli]'\n"
    )
