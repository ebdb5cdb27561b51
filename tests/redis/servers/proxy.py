"""A wire in front of a server that delays, holds, cuts and swallows."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time

from tests.redis.servers.loopback import HOST, Closing, free_port

from waiting import NEVER


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
        connectors = (
            self._leave(from_client, asked, "requests"),
            self._arrive(asked, to_server, self._request),
            self._leave(from_server, answered, "answers"),
            self._arrive(answered, to_client, self._answer),
        )
        self.pumps = [asyncio.ensure_future(connector) for connector in connectors]
        try:
            await asyncio.gather(*self.pumps, return_exceptions=True)
        finally:
            self.cut()

    async def _leave(self, reader, connection, kind):
        chunk = b"-"
        while chunk:
            try:
                chunk = await reader.read(65536)
            except OSError:
                chunk = b""
            connection.put_nowait((time.monotonic() + self.proxy.delays[kind], chunk))

    async def _arrive(self, connection, writer, may_pass):
        while True:
            due, chunk = await connection.get()
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


class Proxy(Closing):
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
        self._thread.join(NEVER)
        self._loop.close()

    def _do(self, action):
        async def act():
            if asyncio.iscoroutine(outcome := action()):
                await outcome

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(NEVER)

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
