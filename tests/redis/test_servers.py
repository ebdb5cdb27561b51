"""The servers of these tests do what they are asked to, and nothing is left of them."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import redis
from tests.redis.servers import HOST, Cluster, Proxy, Sentinels, Server, eventually, free_port

from conftest import TESTS, needs_program

pytestmark = pytest.mark.slow


def runs(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_each_program_answers(server):
    client = server.client()
    assert client.incr("n") == 1
    assert client.info("server")["process_id"] == server.pid


@pytest.mark.parametrize("turn", [1, 2])
def test_a_shared_server_is_empty_whatever_was_done_to_it(valkey, turn):
    client = valkey.client()
    assert client.dbsize() == 0
    assert client.script_exists("e0e1f9fabfc9d4800c877a703b823ac0578ff8db") == [False]
    client.set("left", "over")
    client.script_load("return 1")
    valkey.kill() if turn == 1 else valkey.stop()


def test_stopped_it_does_not_answer_and_continued_it_does(valkey):
    client = valkey.client(socket_timeout=0.2)
    assert client.ping()
    valkey.stop()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    valkey.cont()
    assert valkey.client().ping()


def test_killed_it_comes_back_on_its_port_with_its_file(make_server):
    server = make_server(appendonly="yes", appendfsync="always")
    port, pid = server.port, server.pid
    assert server.client().incr("n") == 1
    server.kill()
    assert not runs(pid)
    with pytest.raises(redis.ConnectionError):
        server.client().ping()
    server.restart()
    assert (server.port, server.client().incr("n")) == (port, 2)
    server.stop()
    server.restart()  # asked to end, although it was stopped
    assert server.client().incr("n") == 3


def test_unix_socket_and_password(make_server):
    server = make_server(unix=True, requirepass="secret")
    assert server.url.startswith("unix://:secret@/")
    assert server.client().ping()


def test_tls(make_tls_server):
    server = make_tls_server()
    assert server.url.startswith("rediss://")
    assert server.client().ping()
    stranger = server.client(port=server.port, ssl=True)
    with pytest.raises(redis.ConnectionError, match="CERT"):
        stranger.ping()


def test_a_taken_port_is_not_the_end(monkeypatch, make_server, valkey):
    ports = iter([valkey.port])
    monkeypatch.setattr("tests.redis.servers.server.free_port", lambda: next(ports, None) or free_port())
    server = make_server()
    assert server.port != valkey.port
    assert server.client().info("server")["process_id"] == server.pid


def test_a_bad_option_is_told_with_the_log():
    with pytest.raises(ChildProcessError, match="does not start"):
        Server(maxmemory_policy="nonsense")


@pytest.mark.parametrize("kill", [True, False])
def test_failover(make_sentinels, kill):
    sentinels = make_sentinels()
    old = sentinels.primary()
    old.client().set("k", "v")
    eventually(lambda: sentinels.replicas()[0].client().get("k"), "replication")
    new = sentinels.failover(kill=kill)
    assert new is sentinels.primary() is not old
    assert new.client().get("k") == b"v"
    new.client().set("after", "promotion")
    sentinels.rejoin(old)
    assert old.client().get("after") == b"promotion"


def test_cluster_spreads_keys(cluster):
    assert len({cluster.owner(f"k{i}").port for i in range(50)}) == 3
    with contextlib.closing(cluster.client()) as client:
        for i in range(50):
            client.set(f"k{i}", i)
    for i in range(50):
        assert cluster.owner(f"k{i}").client().get(f"k{i}") == b"%d" % i


def test_cluster_is_whole_again_after_a_kill(cluster):
    cluster.servers[1].kill()
    cluster.clean()
    with contextlib.closing(cluster.client()) as client:
        assert client.dbsize() == 0


def through(proxy, valkey, **options):
    return valkey.client(port=proxy.port, **options)


def test_proxy_passes_and_delays(valkey, make_proxy):
    proxy = make_proxy(valkey)
    client = through(proxy, valkey)
    assert client.ping()
    proxy.delay(0.2)
    began = time.monotonic()
    assert client.incr("n") == 1
    assert time.monotonic() - began >= 0.2
    proxy.heal()
    proxy.delay(requests=0.3)
    asking = threading.Thread(target=client.incr, args=("n",))
    asking.start()
    assert valkey.client().get("n") == b"1"
    asking.join()
    assert valkey.client().get("n") == b"2"


def test_proxy_passes_much(valkey, make_proxy):
    client = through(make_proxy(valkey), valkey)
    blob = os.urandom(3_000_000)
    client.set("blob", blob)
    assert client.get("blob") == blob


def test_proxy_in_front_of_a_unix_socket(make_server, make_proxy):
    server = make_server(unix=True)
    assert through(make_proxy(server), server).ping()


def test_proxy_cuts_and_refuses(valkey, make_proxy):
    proxy = make_proxy(valkey)
    client = through(proxy, valkey)
    with socket.create_connection((HOST, proxy.port), 5) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(99) == b"+PONG\r\n"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(99)
    assert client.ping()
    proxy.refuse()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    proxy.heal()
    assert client.ping()


def test_proxy_drops_answers_after_the_server_acted(valkey, make_proxy):
    proxy = make_proxy(valkey)
    client = through(proxy, valkey)
    client.ping()
    proxy.drop_answers(2, only=b"incr")
    for _ in range(2):  # the greeting of the second connection passes
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
    assert client.incr("n") == 3
    assert proxy.dropped == 2


def test_proxy_drops_an_answer_and_stays_connected(valkey, make_proxy):
    proxy = make_proxy(valkey)
    client = through(proxy, valkey, socket_timeout=0.2)
    client.ping()
    proxy.drop_answers(1, cut=False)
    with pytest.raises(redis.TimeoutError):
        client.incr("n")
    assert client.incr("n") == 2


def test_proxy_stalls_until_healed(valkey, make_proxy):
    proxy = make_proxy(valkey)
    client = through(proxy, valkey)
    client.ping()
    proxy.stall()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(client.incr("n")))
    asking.start()
    with pytest.raises(redis.TimeoutError):  # accepted, never answered
        through(proxy, valkey, socket_timeout=0.2).ping()
    assert not answers
    proxy.heal()
    asking.join()
    assert answers == [1]


def test_proxy_without_a_server_behind(make_server, make_proxy):
    server = make_server()
    client = through(make_proxy(server), server)
    server.kill()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    server.restart()
    assert client.ping()


@needs_program("setpriv", install="apt-get install util-linux")
def test_it_dies_with_a_killed_pytest():
    script = "import time; from tests.redis.servers import Server; s = Server(); print(s.pid, s.folder); time.sleep(60)"
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    command = [sys.executable, "-u", "-c", script]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout
        pid, folder = starter.stdout.readline().split()
        starter.kill()
    # A zombie still has a pid, and no command line.
    eventually(lambda: not runs(int(pid)) or not Path(f"/proc/{int(pid)}/cmdline").read_bytes(), "its end")
    shutil.rmtree(folder)


def test_nothing_is_left_behind():
    threads = set(threading.enumerate())
    with contextlib.ExitStack() as stack:
        alone, watched, spread = (stack.enter_context(kind()) for kind in (Server, Sentinels, Cluster))
        proxy = stack.enter_context(Proxy(alone))
        through(proxy, alone).ping()
        proxy.stall()
        alone.stop()
        everyone = [alone, *watched.servers, watched.sentinel, *spread.servers]
        assert all(runs(one.pid) and one.folder.exists() for one in everyone)
    assert not any(runs(one.pid) or one.folder.exists() for one in everyone)
    assert set(threading.enumerate()) == threads
