"""embedded://DIR with real processes: one server for all of them, and none when no process is left."""

import contextlib
import os
import signal
import stat
import threading
from pathlib import Path

import redis
from tests.redis.embedded.processes import MARKS, deserted, guards, servers, starts, together

from headway.engines.redis.embedded.server import SharedServer

pytestmark = MARKS


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
        together(users[:2], "shared.close()")
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
    assert users[2].call("client.ping()")
    users[2].leave()
    assert server not in servers(home)
    assert deserted(home)


def test_coming_and_going_without_a_pause(home, user):
    users = [user() for _ in range(3)]
    visit = "[(enter(), client.incr('n'), shared.close()) for _ in range(15)] and 1"
    assert together(users, visit) == [1, 1, 1]
    assert users[0].call("enter() and int(client.get('n'))") == 45
    for one in users:
        one.leave()
    assert deserted(home)


def test_what_it_is_like(home, shared):
    shared.open()
    shared.open()
    assert shared.socket_path == str(home / "server.sock")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "server.sock").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) & 0o077 == 0 for file in home.rglob("*"))
    with redis.Redis(unix_socket_path=shared.socket_path) as client:
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


def test_threads_and_two_tenancies_of_one_process(home, shared):
    threads = [threading.Thread(target=shared.open) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other = SharedServer(str(home))
    other.open()
    assert starts(home) == 1
    shared.close()
    shared.close()
    assert len(servers(home)) == 1
    other.close()
    assert servers(home) == []
    assert not other.on_unreachable()  # a user that has left starts nothing
    assert starts(home) == 1
