"""A service on a loopback port, in a thread of the test, and requests to it byte for byte."""

import asyncio
import http.client
import json
import threading
from contextlib import contextmanager
from typing import Any, NamedTuple

from headway.service.config import parse_config
from headway.service.running import Server, listen, url_of, uvicorn_config
from headway.service.service import Service
from headway.service.web import web_app
from waiting import NEVER


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any

    @property
    def kind(self):
        """The last part of a problem's type."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.body["status"] == self.status
        return self.body["type"].removeprefix("urn:headway:")


class Client:
    def __init__(self, url):
        self.url = url
        self.host, _, port = url.removeprefix("http://").rpartition(":")
        self.port = int(port)

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(self.host.strip("[]"), self.port, timeout=NEVER)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        found = {name.lower(): value for name, value in reply.getheaders()}
        return Reply(
            reply.status, found, json.loads(text) if "json" in found.get("content-type", "") else text
        )

    def get(self, path, **headers):
        return self.request("GET", path, headers=headers)

    def post(self, path, value, kind="application/json", **headers):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.request("POST", path, body, {"Content-Type": kind, **headers})


@contextmanager
def serving(app):
    """The client of an application that is served."""
    listener = listen("127.0.0.1", 0)
    ready = threading.Event()
    server = Server(uvicorn_config(app), ready.set)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        assert ready.wait(NEVER)
        yield Client(url_of(listener))
    finally:
        server.should_exit = True
        thread.join(NEVER)
        listener.close()
    assert not thread.is_alive()


@contextmanager
def serving_on(engine, config=""):
    """The URL of a whole service on this engine, in a thread."""
    listener = listen("127.0.0.1", 0)
    ready = threading.Event()
    failed: list[BaseException] = []
    ends: list[Any] = []

    async def main():
        service = Service(parse_config(config, "served.toml", {}), engine=engine)
        try:
            await service.start()
            server = Server(uvicorn_config(web_app(service)), ready.set)
            ends.append((asyncio.get_running_loop(), server, service))
            await server.serve([listener])
        finally:
            await service.close()

    def run():
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - the test's own thread reports it
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(NEVER)
        assert not failed, failed
        yield url_of(listener)
    finally:
        for loop, server, service in ends:
            server.should_exit = True
            loop.call_soon_threadsafe(service.remote.close)
        thread.join(NEVER)
        listener.close()
    assert not thread.is_alive()
    assert not failed, failed
