"""A crawler that is polite: so many requests a second to each host, robots.txt kept, and a 429 is heard.

    pip install . httpx
    python examples/polite_crawler.py https://example.com/

Ten tasks fetch at once. The transport keeps the limit for each host, lets every request wait in line, and pauses a host
that answers 429 or 503 for as long as it says; what one host says concerns no other. A `Crawl-delay` of robots.txt is a
limit of that host alone. A page that makes no sense is told, and the others go on.
"""

import asyncio
import re
import sys
import urllib.robotparser
from urllib.parse import urldefrag, urljoin, urlsplit

import httpx

from headway import Limiter, Spacing
from headway.integrations.httpx import AsyncTransport

AGENT = "polite-crawler"
LIMIT = "5/s burst 1"
PAGES = 50
TASKS = 10


class Crawler:
    """Follows the links of a site, up to a number of pages."""

    def __init__(self, client: httpx.AsyncClient, start: str) -> None:
        self.client = client
        self.hosts = {urlsplit(start).netloc}
        self.seen = {start}
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.queue.put_nowait(start)
        self.robots: dict[str, urllib.robotparser.RobotFileParser] = {}
        self.spaced: dict[str, Limiter] = {}

    async def allowed(self, url: str) -> bool:
        """What robots.txt says; where there is none, everything."""
        host = urlsplit(url).netloc
        if host not in self.robots:
            rules = urllib.robotparser.RobotFileParser()
            answer = await self.client.get(urljoin(url, "/robots.txt"))
            rules.parse(answer.text.splitlines() if answer.status_code == 200 else [])
            self.robots[host] = rules
            if delay := rules.crawl_delay(AGENT):
                self.spaced[host] = Limiter(Spacing(float(delay)))
        return self.robots[host].can_fetch(AGENT, url)

    async def fetch(self, url: str) -> None:
        if not await self.allowed(url):
            print(f"not allowed  {url}")
            return
        spaced = self.spaced.get(urlsplit(url).netloc)
        if spaced is not None:
            await spaced.acquire_async()
        answer = await self.client.get(url)
        print(f"{answer.status_code}  {len(answer.content):7,} bytes  {url}")
        html = answer.text if "html" in answer.headers.get("content-type", "") else ""
        for link in re.findall(r'href="([^"]+)"', html):
            try:
                found = urldefrag(urljoin(url, link)).url
                host = urlsplit(found).netloc
            except ValueError:
                continue  # a link that is no address
            if host in self.hosts and found not in self.seen and len(self.seen) < PAGES:
                self.seen.add(found)
                self.queue.put_nowait(found)

    async def work(self) -> None:
        while True:
            url = await self.queue.get()
            try:
                await self.fetch(url)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                print(f"{type(error).__name__}  {url}")
            finally:
                self.queue.task_done()


async def main(start: str) -> None:
    transport = AsyncTransport({"*": LIMIT}, retries=3)
    async with httpx.AsyncClient(transport=transport, headers={"User-Agent": AGENT}, timeout=30) as client:
        crawler = Crawler(client, start)
        tasks = [asyncio.create_task(crawler.work()) for _ in range(TASKS)]
        await crawler.queue.join()
        for task in tasks:
            task.cancel()
    print(f"{len(crawler.seen)} pages")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "https://example.com/"))
