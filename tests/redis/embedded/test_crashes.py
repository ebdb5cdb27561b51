"""Users, guard or server are killed, or the directory is deleted: one server all the same, and none is left behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from tests.redis.embedded.processes import MARKS, deserted, guards, runs, servers, starts, together
from tests.redis.servers import eventually

from headway.errors import EngineUnavailable
from waiting import SOON

pytestmark = MARKS


def test_the_first_user_is_killed(home, user):
    first, second = user(), user()
    run = first.call("enter()")
    second.call("enter()")
    first.kill()
    time.sleep(0.3)
    assert second.call("enter()") == run
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


def test_the_first_user_is_killed_when_it_has_just_started_the_server(home, user):
    one = user()
    one.call("setattr(shared, 'employ', shared._employ)")
    die = "shared.employ(lock, command), lock == 'server.lock' and os.kill(os.getpid(), signal.SIGKILL)"
    one.call(f"setattr(shared, '_employ', lambda lock, command: ({die}))")
    one.say("enter()")
    eventually(lambda: starts(home), "a server that has started")
    assert deserted(home)


def test_the_guard_is_killed_too_and_the_next_user_adopts(home, user):
    first = user()
    run = first.call("enter()")
    os.kill(guards(home)[0], signal.SIGKILL)
    first.kill()
    time.sleep(0.3)
    second = user()
    assert second.call("enter()") == run
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
    runs = set(together(users, "on_unreachable()"))
    assert len(runs) == 1
    assert runs != {False}
    assert (len(servers(home)), len(guards(home)), starts(home)) == (1, 1, 2)
    kept = users[0].call("int(client.get('n'))")
    assert acknowledged <= kept <= acknowledged + 3  # each may have had one on the way
    assert set(together(users, "on_unreachable()")) == runs  # nothing to do
    for one in users:
        one.leave()
    assert deserted(home)


def test_a_stopped_server_is_not_dead(home, shared):
    shared.open()
    (server,) = servers(home)
    os.kill(server, signal.SIGSTOP)
    began = time.monotonic()
    assert not shared.on_unreachable(timeout=0.3)
    with pytest.raises(EngineUnavailable, match="did not answer within"):
        shared.open(timeout=0.3)
    assert time.monotonic() - began < SOON
    assert servers(home) == [server]
    os.kill(server, signal.SIGCONT)
    assert shared.on_unreachable()
    assert starts(home) == 1


def test_a_server_that_dies_while_it_is_waited_for_is_started_again(home, shared):
    shared.open()
    (server,) = servers(home)
    os.kill(server, signal.SIGSTOP)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(shared.on_unreachable()))
    waiting.start()
    time.sleep(0.2)
    os.kill(server, signal.SIGKILL)
    waiting.join()
    assert answers == [True]
    assert starts(home) == 2


def test_a_stale_pid_file_that_names_an_innocent(home, shared):
    with subprocess.Popen(["sleep", "60"]) as innocent:
        try:
            home.mkdir(mode=0o700)
            (home / "server.pid").write_text(f"{innocent.pid}\n")
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(home / "server.sock"))  # no process listens, as after a power cut
            shared.open()
            (server,) = servers(home)
            os.kill(server, signal.SIGKILL)
            (home / "server.pid").write_text(f"{innocent.pid}\n")
            assert shared.on_unreachable()
            shared.close()
            assert deserted(home)
            assert innocent.poll() is None
        finally:
            innocent.kill()


def test_the_directory_is_deleted_under_it(home, user):
    one, two = user(), user()
    together([one, two], "enter()")
    old = [*servers(home), *guards(home)]
    eventually(lambda: "headway-guard" in one.call("str(client.client_list())"), "a guard that is connected")
    shutil.rmtree(home)
    assert one.call("client.ping()")  # by a connection that is open
    assert two.call("client.connection_pool.disconnect()") is None
    run = two.call("on_unreachable()")  # one that is new finds nothing, and starts anew
    assert len(servers(home)) == 1
    one.leave()  # the last user of the old one, and no user of the new one
    eventually(lambda: not any(map(runs, old)), "the old ones gone")
    assert two.call("client.info('server')['run_id']") == run
    two.leave()
    assert deserted(home)


def test_the_directory_is_deleted_before_the_end(home, user):
    one = user()
    one.call("enter()")
    old = [*servers(home), *guards(home)]
    eventually(lambda: "headway-guard" in one.call("str(client.client_list())"), "a guard that is connected")
    shutil.rmtree(home)
    one.leave()
    eventually(lambda: not any(map(runs, old)), "all gone")


def test_without_a_guard_the_next_user_adopts(home, user, shared, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    shared.open()
    assert (len(servers(home)), guards(home)) == (1, [])
    shared.close()
    assert deserted(home)
