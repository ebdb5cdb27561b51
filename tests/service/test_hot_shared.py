"""Hot calls over real sockets, and on a real server: those of many connections travel together, and block no other."""

import asyncio
import itertools
import json
import socket

import pytest
import redis
from tests.service.processes import served as served_process
from tests.service.wires import HEALTH, PLAIN, acquire, kinds, request, served

from waiting import NEVER

pytestmark = pytest.mark.realtime

numbers = itertools.count()
PATIENT = f"engine_timeout = {NEVER}\n"
LIMITS = f'[limits.api]\nlimit = "100000/hour"\n{PATIENT}[limits.few]\nlimit = "3/hour"\n{PATIENT}'
LIMITS += f'[limits.calls]\nlimit = "2 concurrent"\n{PATIENT}'


@pytest.fixture
def uri(valkey):
    """The engine, and keys that no other test has."""
    return f"{valkey.url}?namespace=hot{next(numbers)}"


def commands(valkey):
    """How many scripts the server has run."""
    with redis.Redis.from_url(valkey.url) as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval", "fcall"))


def test_requests_of_many_connections_travel_together(uri, valkey):
    async def main():
        async with served(LIMITS, engine=uri) as server:
            warm = server.connect()
            warm.send(acquire(b'{"limit": "api"}') * 2)
            async with asyncio.timeout(NEVER):
                await warm.after(2)
            before = commands(valkey)
            connections = [server.connect() for _ in range(40)]
            for connection in connections:
                connection.send(acquire(b'{"limit": "api"}') * 4)
                connection.send(HEALTH)
            async with asyncio.timeout(NEVER):
                for connection in connections:
                    found = await connection.after(5)
                    assert kinds(found) == ["granted"] * 4 + ["status"]
            assert server.asked == []
            assert commands(valkey) - before < 80, "160 decisions"
            left = [
                json.loads(said.body)["status"]["remaining"]
                for connection in connections
                for said in connection.answers().found[:4]
            ]
            assert min(left) == 100_000 - 162, "each was counted"

    asyncio.run(main())


def test_denials_ids_and_permits_on_a_shared_engine(uri):
    async def main():
        async with served(LIMITS, engine=uri) as server, asyncio.timeout(NEVER):
            connection = server.connect()
            connection.send(acquire(b'{"limit": "few", "id": "one"}') * 3 + acquire(b'{"limit": "few"}') * 3)
            found = await connection.after(6)
            assert [said.status for said in found] == [200, 200, 200, 200, 200, 429]
            assert len({said.body for said in found[:3]}) == 1, "a command with an id is carried out once"
            assert "retry-after" in dict(found[5].headers)
            held = server.connect()
            held.send(acquire(b'{"limit": "calls"}'))
            (said,) = await held.after(1)
            permit = json.loads(said.body)["permit"]
            for verb, expected in (("renew", "expires_in"), ("release", "ended")):
                held.send(request("POST", f"/v1/permits/{permit}/{verb}", b"{}", headers=PLAIN))
                said = (await held.after(2))[-1]
                assert expected in json.loads(said.body)
            assert server.asked == []

    asyncio.run(main())


@pytest.mark.slow
def test_a_client_that_only_sends_fills_no_memory(tmp_path):
    """Over a real socket: the server stops to read from it, answers others, and all answers are there in the end."""
    text = '[server]\nengine = "memory://"\n[limits.api]\nlimit = "100000000/hour"\n'
    with served_process(tmp_path, text) as process:
        data = acquire(b'{"limit": "api"}') * 200
        with socket.create_connection((process.client.host, process.client.port), timeout=NEVER) as client:
            client.setblocking(False)
            sent, rest = 0, b""
            for _ in range(100_000):
                try:
                    rest = rest or data
                    count = client.send(rest)
                    sent, rest = sent + count, rest[count:]
                except BlockingIOError:
                    break
            else:
                pytest.fail("the server never stopped to read")
            assert process.acquire("api").status == 200
            client.setblocking(True)
            client.settimeout(NEVER)
            whole, expected = b"", sent // (len(data) // 200)
            found = 0
            while found < expected:
                whole = whole[-20:] if found else whole
                part = client.recv(1 << 16)
                assert part
                both = whole + part
                found += both.count(b"HTTP/1.1 200 OK\r\n") - whole.count(b"HTTP/1.1 200 OK\r\n")
                whole = both
            assert found == expected
