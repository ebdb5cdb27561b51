"""A service in this process, in virtual time: a wait of an hour takes no time, and every run is the same."""

import asyncio
from contextlib import asynccontextmanager

import httpx

from headway.service.config import parse_config
from headway.service.service import Service
from headway.service.web import web_app
from headway.testing import run


class Peer:
    """A client of the application, with what a test looks at beside it."""

    def __init__(self, service, client, app):
        self.service = service
        self.client = client
        self.app = app

    @property
    def now(self):
        return asyncio.get_running_loop().time()

    async def get(self, path, **headers):
        return await self.client.get(path, headers=headers)

    async def post(self, path, body=None, **headers):
        return await self.client.post(path, json={} if body is None else body, headers=headers)

    async def put(self, path, body):
        return await self.client.put(path, json=body)

    async def delete(self, path):
        return await self.client.delete(path)

    async def acquire(self, limit, **body):
        return await self.post("/v1/acquire", {"limit": limit, **body})

    async def release(self, permit, how="complete", **body):
        return await self.post(f"/v1/permits/{permit}/release", {"how": how, **body})

    def disconnecting(self, body, path="/v1/acquire"):
        """A request as a task, and a function that disconnects its client."""
        gone = asyncio.Event()
        sent = []
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "headers": headers,
            "query_string": b"",
            "http_version": "1.1",
            "scheme": "http",
            "asgi": {"version": "3.0"},
        }
        return asyncio.ensure_future(self.app(scope, receive, send)), gone.set, sent


def problem(reply):
    """The last part of a problem's type."""
    assert reply.headers["content-type"] == "application/problem+json"
    found = reply.json()
    assert found["status"] == reply.status_code
    assert found["title"]
    assert found["detail"]
    return found["type"].removeprefix("urn:headway:")


@asynccontextmanager
async def serving(text="", **options):
    loop = asyncio.get_running_loop()
    service = Service(
        parse_config(text, "headway.toml"), engine="memory://", file="headway.toml", now=loop.time, **options
    )
    await service.start()
    app = web_app(service)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        try:
            yield Peer(service, client, app)
        finally:
            await service.close()


def serve(text, test, **options):
    """Run a test, a coroutine function of a `Peer`, against a service with this configuration."""

    async def main():
        async with serving(text, **options) as peer:
            await test(peer)

    run(main())
