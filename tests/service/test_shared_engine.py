"""The service on a real server: several services on one engine, changes of limits, and an engine that is away."""

import asyncio
import itertools
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.service.virtual import Peer, problem

from headway import EngineUnavailable, Permit
from headway.service import acquire
from headway.service.config import parse_config
from headway.service.service import Service
from headway.service.web import web_app
from waiting import NEVER

pytestmark = pytest.mark.realtime

numbers = itertools.count()
PATIENT = f"engine_timeout = {NEVER}\n"


@pytest.fixture
def uri(valkey):
    """The engine, and keys that no other test has."""
    return f"{valkey.url}?namespace=service{next(numbers)}"


async def until(look, expected):
    """Wait until a call has this answer."""
    async with asyncio.timeout(NEVER):
        while (found := await look()) != expected:  # noqa: ASYNC110 - another process answers
            await asyncio.sleep(0.02)
    return found


async def standing(peer, name, member):
    """What the status of a limit says."""
    return (await peer.get(f"/v1/limits/{name}/status")).json()["status"][member]


@asynccontextmanager
async def serving(uri, text):
    service = Service(parse_config(text), engine=uri)
    await service.start()
    app = web_app(service)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=NEVER) as client:
        try:
            yield Peer(service, client, app)
        finally:
            await service.close()


def test_services_on_one_engine_keep_one_limit_and_wake_each_other(uri):
    text = f'[limits.api]\nlimit = "4/hour"\n{PATIENT}[limits.calls]\nlimit = "1 concurrent"\n{PATIENT}'

    async def main():
        async with serving(uri, text) as one, serving(uri, text) as two:
            statuses = [
                (await peer.acquire("api", key="alice")).status_code for peer in (one, two, one, two, one)
            ]
            assert statuses == [200, 200, 200, 200, 429]
            held = (await one.acquire("calls")).json()["permit"]
            waiting = asyncio.ensure_future(two.acquire("calls", wait=NEVER))
            await until(lambda: standing(one, "calls", "waiting"), 1)
            assert not waiting.done()
            await one.release(held)
            reply = await waiting
            assert (reply.status_code, reply.json()["status"]["in_flight"]) == (200, 1)
            assert reply.json()["waited"] > 0

    asyncio.run(main())


def test_a_client_that_disconnects_leaves_the_queue_of_the_engine(uri):
    text = f'[limits.calls]\nlimit = "1 concurrent"\n{PATIENT}'

    async def main():
        async with serving(uri, text) as peer:
            held = (await peer.acquire("calls")).json()["permit"]
            leaving, disconnect, _ = peer.disconnecting(b'{"limit": "calls", "wait": 600}')
            await until(lambda: standing(peer, "calls", "waiting"), 1)
            disconnect()
            await leaving
            await until(lambda: standing(peer, "calls", "waiting"), 0)
            await peer.release(held)
            assert (await peer.acquire("calls", wait=NEVER)).status_code == 200

    asyncio.run(main())


def test_each_and_all_on_a_shared_engine(uri):
    text = f'[limits.api]\nlimit = "50/hour"\n{PATIENT}[limits.few]\nlimit = "1/hour"\n{PATIENT}'

    async def main():
        async with serving(uri, text) as peer:
            takes = [{"limit": "api", "key": f"k{number % 3}"} for number in range(160)]
            answers = (await peer.post("/v1/acquire/each", {"requests": takes})).json()["answers"]
            assert sum(answer["granted"] for answer in answers) == 150
            both = {"requests": [{"limit": "api"}, {"limit": "few"}]}
            assert (await peer.post("/v1/acquire/all", both)).status_code == 200
            denied = await peer.post("/v1/acquire/all", both)
            assert (denied.status_code, denied.json()["index"]) == (429, 1)
            # The release is posted, and comes soon.
            await until(lambda: standing(peer, "api", "remaining"), 49)

    asyncio.run(main())


def test_numbers_options_and_kinds_change_on_a_shared_engine(uri):
    def text(limit, more=""):
        return f'[limits.api]\nlimit = "{limit}"\n{PATIENT}{more}'

    async def main():
        async with serving(uri, text("5/hour")) as peer:

            async def remaining():
                return (await peer.get("/v1/limits/api/status?key=a")).json()["status"]["remaining"]

            await peer.acquire("api", key="a", cost=2)
            await peer.service.reload(text("9/hour"), {})
            assert await remaining() == 7
            await peer.service.reload(text("9/hour", "max_waiting = 5\n"), {})
            assert await remaining() == 7
            await peer.service.reload(text("9 concurrent"), {})
            assert (await peer.acquire("api", key="a")).json()["permit"]
            await peer.service.reload(text("9/hour"), {})
            assert await remaining() == 7, "the ledgers of before are still there"

    asyncio.run(main())


def test_prefetched_limits_are_served_and_handed_back(uri):
    text = f'[limits.fast]\nlimit = "1000/hour"\nprefetch = true\n{PATIENT}'

    async def main():
        async with serving(uri, text) as peer:
            assert (await peer.acquire("fast", wait=NEVER)).status_code == 200
            for _ in range(5):
                assert (await peer.acquire("fast", wait=NEVER)).status_code == 200
        async with serving(uri, text.replace("prefetch = true\n", "")) as peer:
            assert (await peer.get("/v1/limits/fast/status")).json()["status"]["remaining"] == 994

    asyncio.run(main())


def test_an_engine_that_is_away_and_comes_back(uri, valkey):
    text = (
        '[limits.closed]\nlimit = "50/hour"\n[limits.open]\nlimit = "50/hour"\non_engine_error = "open"\n'
        '[limits.watched]\nlimit = "50/hour"\nshadow = true\n'
    )

    async def main():
        async with serving(uri, text) as peer:
            assert (await peer.get("/readyz")).status_code == 200
            valkey.stop()
            try:
                away = await peer.acquire("closed")
                assert (away.status_code, problem(away)) == (503, "engine-unavailable")
                assert away.headers["retry-after"] == "1"
                assert (await peer.acquire("open")).status_code == 200
                assert (await peer.acquire("watched")).json()["would_deny"] == "engine"
                assert problem(await peer.get("/readyz")) == "engine-unavailable"
                assert (await peer.get("/healthz")).status_code == 200
                figures = (await peer.get("/metrics")).text
                assert "headway_engine_up 0.0" in figures
                assert 'headway_denied_total{limit="closed",reason="engine"} 1.0' in figures
            finally:
                valkey.cont()

            async def status(call):
                return (await call).status_code

            await until(lambda: status(peer.acquire("closed")), 200)
            await until(lambda: status(peer.get("/readyz")), 200)

    asyncio.run(main())


def test_a_grant_whose_status_cannot_be_had_is_a_grant(uri, monkeypatch):
    """After a wait the status is a round trip of its own, and the engine may be away by then."""

    class Away(Permit):
        """A permit whose engine is away when its status is asked for."""

        async def status_async(self):
            raise EngineUnavailable("redis://db", "timed out")

    standing = acquire._standing

    async def main():
        async with serving(uri, f'[limits.calls]\nlimit = "1 concurrent"\n{PATIENT}') as peer:
            monkeypatch.setattr(acquire, "_standing", lambda permit: standing(Away()))
            reply = await peer.acquire("calls", wait=1)
            assert (reply.status_code, reply.json()["status"]) == (200, None)
            assert (await peer.release(reply.json()["permit"])).status_code == 200

    asyncio.run(main())
