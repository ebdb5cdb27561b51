"""A directory for an embedded server, and the processes that use it; all of them are gone when the test is over."""

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from tests.redis.embedded.processes import User, inhabitants, runs
from tests.redis.servers import eventually

from headway.engines.redis.embedded.server import SharedServer


@pytest.fixture
def home():
    """A directory that does not exist yet; whatever a failed test leaves in it is ended by its id."""
    above = Path(tempfile.mkdtemp(prefix="headway-"))
    yield above / "home"
    folders = [above / "home", *(path for path in above.rglob("*") if path.is_dir())]
    found = {pid for folder in folders for pid in inhabitants(folder)}
    with contextlib.suppress(TimeoutError):
        eventually(lambda: not any(map(runs, found)), "their end")
    left = [pid for pid in found if runs(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(above, ignore_errors=True)
    assert not left, "processes were left behind"


@pytest.fixture
def user(home):
    """user() is a new process."""
    users = []

    def make():
        users.append(User(home))
        return users[-1]

    yield make
    for one in users:
        one.clear()


@pytest.fixture
def shared(home):
    """A user of the directory in this process."""
    shared = SharedServer(str(home))
    yield shared
    shared.close()
