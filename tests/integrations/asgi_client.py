"""Requests to an ASGI application without a server between."""

import asyncio

import httpx


def ask(app, path="/", method="GET", **headers):
    """The response to one request."""

    async def main():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(main())


def statuses(app, count, path="/", **headers):
    """The statuses of the responses to so many."""
    return [ask(app, path, **headers).status_code for _ in range(count)]
