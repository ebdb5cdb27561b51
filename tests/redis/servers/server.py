"""One server process, which a test may stop, kill and start again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.redis.servers.loopback import HOST, Closing, eventually, free_port, program_path

from conftest import find_program
from waiting import NEVER


def make_certificate(folder):
    """A certificate for 127.0.0.1 and its key, made by openssl; it signs itself, so it is the CA too."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    wanted = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *wanted.split(), *names, *files], check=True, capture_output=True)
    return key, certificate


class Server(Closing):
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
        options = {"socket_timeout": NEVER, "retry": Retry(NoBackoff(), 0), **options}
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
        """SIGSTOP: connections stay open, and the server does not answer."""
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
            self._process.wait(NEVER)

    def restart(self):
        """The same server again, on its old port and files; if it still runs, it is first asked to end."""
        if self._process and self.alive:
            self._process.terminate()
            self.cont()
            self._process.wait(NEVER)
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
        for _ in range(5):  # between free_port() and its use, another process may take the port
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
        if lines.get("cluster-enabled") == "yes":  # the default, port + 10000, may be taken
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
