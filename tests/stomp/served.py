"""A real server for tests: uvicorn in a thread, on a free port of this machine."""

import asyncio
import contextlib
import socket
import threading

import uvicorn

from waiting import NEVER, wait_until


@contextlib.contextmanager
def served(app, **options):
    """The port that the app is served on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **options))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive(), "server")
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(NEVER)
            assert not thread.is_alive()
