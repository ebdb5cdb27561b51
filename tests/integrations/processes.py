"""A web server in a process of its own, with an application that a test wrote into a folder."""

import os
import socket
import subprocess
from contextlib import contextmanager

from waiting import NEVER, wait_until


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def served(command, folder, **environment):
    """The address of the server that `command` starts in a folder; "{port}" in it is the port."""
    port = free_port()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [word.format(port=port) for word in command],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), **environment},
            stdout=log,
            stderr=log,
        )
        try:
            wait_until(lambda: answers(port) or process.poll() is not None, "the server")
            assert process.poll() is None, (folder / "server.log").read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(NEVER)
