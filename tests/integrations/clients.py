"""The HTTP clients that there is an integration for, each with one way to make many calls at once."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import httpx
import httpx2
import requests

from headway.integrations import aiohttp as for_aiohttp
from headway.integrations import httpx as for_httpx
from headway.integrations import httpx2 as for_httpx2
from headway.integrations import requests as for_requests
from waiting import NEVER


def threads(session, get, urls):
    with ThreadPoolExecutor(len(urls)) as pool:
        return list(pool.map(lambda url: get(session, url), urls))


def with_httpx(library, integration, limit, urls, **options):
    limits = library.Limits(max_connections=300)
    wrapped = library.HTTPTransport(limits=limits)
    transport = integration.Transport(limit, wrapped, **options)
    with library.Client(transport=transport, timeout=NEVER, follow_redirects=True) as client:
        return threads(client, lambda client, url: client.get(url).status_code, urls)


def with_httpx_async(library, integration, limit, urls, **options):
    async def main():
        wrapped = library.AsyncHTTPTransport(limits=library.Limits(max_connections=300))
        transport = integration.AsyncTransport(limit, wrapped, **options)
        async with library.AsyncClient(transport=transport, timeout=NEVER, follow_redirects=True) as client:
            replies = await asyncio.gather(*map(client.get, urls))
        return [reply.status_code for reply in replies]

    return asyncio.run(main())


def with_requests(limit, urls, **options):
    adapter = {"pool_connections": 300, "pool_maxsize": 300}
    with requests.Session() as session:
        session.mount("http://", for_requests.Adapter(limit, adapter=adapter, **options))
        return threads(session, lambda session, url: session.get(url, timeout=NEVER).status_code, urls)


def with_aiohttp(limit, urls, **options):
    async def main():
        async with aiohttp.ClientSession(
            middlewares=[for_aiohttp.Middleware(limit, **options)],
            connector=aiohttp.TCPConnector(limit=300),
            timeout=aiohttp.ClientTimeout(NEVER),
        ) as session:

            async def get(url):
                async with session.get(url) as reply:
                    await reply.read()
                    return reply.status

            return await asyncio.gather(*map(get, urls))

    return asyncio.run(main())


def bound(function, *first):
    return lambda limit, urls, **options: function(*first, limit, urls, **options)


CLIENTS = {
    "httpx": bound(with_httpx, httpx, for_httpx),
    "httpx async": bound(with_httpx_async, httpx, for_httpx),
    "httpx2": bound(with_httpx, httpx2, for_httpx2),
    "httpx2 async": bound(with_httpx_async, httpx2, for_httpx2),
    "requests": with_requests,
    "aiohttp": with_aiohttp,
}
