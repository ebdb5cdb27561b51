"""Clients that mean no good, and one that does: what the tests of attacks are made of."""

import contextlib
import http.client
import json
import re
import select
import socket
import threading
import time

from waiting import NEVER


class Bystander:
    """A thread with a connection of its own that takes permits as before; every answer has to come."""

    def __init__(self, process, limit="api", pause=0.05):
        self.answers: list[int] = []
        self.failure: BaseException | None = None
        self._where = (process.client.host, process.client.port)
        self._limit, self._pause = limit, pause
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            while not self.answers or not self._stopped.wait(self._pause):
                # A new connection each time: this is what an attack on connections makes impossible.
                connection = http.client.HTTPConnection(*self._where, timeout=NEVER)
                with contextlib.closing(connection):
                    head = {"Content-Type": "application/json"}
                    connection.request("POST", "/v1/acquire", json.dumps({"limit": self._limit}), head)
                    self.answers.append(connection.getresponse().status)
        except BaseException as error:  # noqa: BLE001 - told to the test, by `stop`
            self.failure = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, *_):
        self._stopped.set()
        self._thread.join(NEVER)
        if kind is None:
            self.check()

    def check(self):
        """It has got permits all the time."""
        if self.failure is not None:
            raise self.failure
        assert self.answers
        assert set(self.answers) == {200}, self.answers


class Slow:
    """A connection on which a little is sent now and then, until the server has had enough."""

    def __init__(self, process, begin, drip, *, reads=True):
        self.connection = process.connect()
        self.connection.setblocking(False)
        self.drip, self.reads = drip, reads
        self.said = b""
        self.ended = False
        self._send(begin)

    def _send(self, data):
        try:
            sent = self.connection.send(data) if data else 0
        except BlockingIOError:
            return 0
        except OSError:
            self.ended = True
            return 0
        return sent

    def go_on(self):
        """Send some more, and look whether it has been closed."""
        self._send(self.drip)
        ready = select.select([self.connection], [], [], 0)[0] if self.reads and not self.ended else []
        if ready:
            try:
                data = self.connection.recv(65536)
            except OSError:
                data = b""
            self.said += data
            self.ended = not data

    def stuff(self, data):
        """Send this again and again until nothing fits any more; how many bytes went."""
        total = 0
        while True:
            found = self._send(data)
            if not found:
                return total
            total += found


def go_on(clients, *, every=0.5, within=2 * NEVER):
    """Let all of them go on until the server has closed every one."""
    deadline = time.monotonic() + within
    while not all(one.ended for one in clients):
        left = [one.drip for one in clients if not one.ended]
        assert time.monotonic() < deadline, f"{len(left)} are still open, such as those that send {left[0]!r}"
        time.sleep(every)
        for one in clients:
            if not one.ended:
                one.go_on()


def figure(process, name):
    """One figure of /metrics."""
    text = process.client.get("/metrics").body.decode()
    return float(re.findall(rf"^{name} (.*)$", text, re.MULTILINE)[0])


def flood(connection, parts):
    """Send until the server has closed the connection; what it said, if that has come."""
    with contextlib.suppress(OSError):
        for part in parts:
            connection.sendall(part)
    connection.settimeout(NEVER)
    said = b""
    try:
        while data := connection.recv(65536):
            said += data
    except ConnectionError:
        return said  # closed with more on its way, which is a reset
    except TimeoutError:
        raise AssertionError(f"it is still open, and has said {said[:200]!r}") from None
    return said


def open_files(number):
    """Whether this process may have so many open, now that it has asked for them."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        if hard != resource.RLIM_INFINITY and hard < number:
            return False
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    return True


def idle(process, number):
    """So many connections on which nothing is sent."""
    where = (process.client.host, process.client.port)
    return [socket.create_connection(where, timeout=NEVER) for _ in range(number)]
