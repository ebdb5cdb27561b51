"""The options of `headway serve`, and what is said about wrong ones; as a process it is tested in tests/service."""

import sys

import pytest
from typer.testing import CliRunner

from headway.cli.app import app
from headway.cli.serving import state_engine


def headway(*words):
    return CliRunner().invoke(app, ["serve", *words])


def said(result):
    """What is on stderr, without the frame that typer draws and its line ends."""
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_help_lists_the_options():
    result = headway("--help")
    assert result.exit_code == 0
    for option in (
        "--config",
        "--engine",
        "--host",
        "--port",
        "--insecure",
        "--tls-cert",
        "--tls-key",
        "--origin",
    ):
        assert option in result.output


def test_a_wrong_file_is_named(tmp_path):
    tmp_path.joinpath("wrong.toml").write_text('[limits.api]\nlimit = "5/fortnight"')
    result = headway("--config", "wrong.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "headway: wrong.toml: [limits.api] limit = '5/fortnight' cannot be read at position 2"
    )


def test_the_file_of_the_folder_is_read_without_a_word(tmp_path):
    tmp_path.joinpath("headway.toml").write_text("[limits.api]\n")
    result = headway()
    assert result.exit_code == 2
    assert result.stderr.startswith("headway: headway.toml: [limits.api] has no limit")


def test_a_file_that_cannot_be_read(tmp_path):
    result = headway("--config", "missing.toml")
    assert result.exit_code == 2
    assert "missing.toml cannot be read: No such file or directory" in said(result)
    tmp_path.joinpath("latin.toml").write_bytes(b"\xff")
    assert "latin.toml cannot be read: it is no UTF-8" in " ".join(
        headway("--config", "latin.toml").stderr.split()
    )


def test_another_address_needs_tokens():
    result = headway("--host", "0.0.0.0", "--engine", "memory://")
    assert result.exit_code == 2
    assert (
        "[server] host = '0.0.0.0' is open to other machines, and there are no tokens; give tokens"
        in result.stderr
    )


def test_options_that_make_no_sense(tmp_path):
    tmp_path.joinpath("cert.pem").write_text("nothing")
    for words, message in (
        (["--tls-cert", "cert.pem"], "give both --tls-cert and --tls-key"),
        (["--tls-key", "cert.pem"], "give both --tls-cert and --tls-key"),
        (["--tls-cert", "cert.pem", "--tls-key", "cert.pem"], "cannot be used"),
        (["--port", "70000"], "--port"),
    ):
        result = headway("--engine", "memory://", *words)
        assert result.exit_code == 2
        assert message in said(result)
    wrong = headway("--engine", "postgres://db", "--port", "0")
    assert wrong.exit_code == 2
    assert "engine='postgres://db' is not accepted" in wrong.stderr


def test_the_engine_without_a_directory_is_in_the_folder_for_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a b"))
    assert state_engine("serve") == f"embedded://{tmp_path}/a%20b/headway/serve"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/alice")
    assert state_engine("serve") == "embedded:///home/alice/.local/state/headway/serve"


@pytest.mark.parametrize("module", ["starlette", "uvicorn", "msgspec", "prometheus_client"])
def test_what_is_missing_is_named(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    result = headway("--engine", "memory://")
    assert result.exit_code == 2
    assert result.stderr == f"headway serve: this needs {module}: pip install 'headway[server]'\n"
