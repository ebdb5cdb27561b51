"""Envoy's rate limit service: decisions of `headway serve` beside those of the programs that exist for it.

Every server runs on one core (and its Redis on the same one), the load on another. The sides take turns, a second each,
and the figure is the median of the quotients of neighbours. What is divided are decisions per second *of the server's
core*: of the time that the server and its Redis have used, as the kernel counts it. On a machine with nothing else to
do a server under this load fills its core, and that is the same as decisions per second; on one that is busy it is
still the same, and decisions per second are not.

The load (`grpc_load.pyx`) keeps 8 connections with 16 calls each busy. Every decision is granted, has its limit, what
remains and the reset in its answer, and is counted as one only if it has a message. throttlecrab has a service of its
own (its limit comes with each request); its answer says the same four things.

With a real Envoy in front of a small upstream, one client asks one call after another; what a rate limit service adds
is the median with the filter less the median without.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.alone import ROOT
from bench.compiled import grpc_load
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading, Section
from bench.programs import Running, on_load_core, on_one_core, program
from bench.server import free_port

CONNECTIONS, STREAMS = 8, 16
KEYS = 1000
ENVOYS = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
CRABS = b"/throttlecrab.RateLimiter/Throttle"
RULES = "domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000000}}\n"


class Side(NamedTuple):
    """A server under load: where it is asked, with what, and whose time counts."""

    port: int
    path: bytes
    messages: list[bytes]
    processes: list[Running]


class Sample(NamedTuple):
    per_core: float
    per_second: float


def envoys_messages(keys: int) -> list[bytes]:
    from headway.service.envoy.client_codec import encode_request
    from headway.service.envoy.messages import Descriptor, Entry, RateLimitRequest

    return [
        encode_request(RateLimitRequest("d", (Descriptor((Entry("user", f"user-{n}"),)),)))
        for n in range(keys)
    ]


def crabs_messages(keys: int) -> list[bytes]:
    from headway.service.envoy.wire import number_field, text_field

    limit = b"".join(number_field(n, value) for n, value in ((2, 10**9), (3, 10**9), (4, 3600), (5, 1)))
    return [text_field(1, f"user-{n}") + limit for n in range(keys)]


# -- servers ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def headway_serve(folder: Path, engine: str = "memory://", transport: str = "nghttp2") -> Iterator[Running]:
    port = free_port()
    place = folder / f"headway-{port}"
    place.mkdir()
    (place / "rules.yaml").write_text(RULES)
    text = f'[server]\nengine = "{engine}"\nport = {free_port()}\n'
    text += f'[envoy]\nlimits = "rules.yaml"\nport = {port}\ntransport = "{transport}"\n'
    if engine != "memory://":
        text += "engine_timeout = 30\n"  # another program may have the core
    (place / "headway.toml").write_text(text)
    command = [sys.executable, "-m", "headway.cli", "serve", "--config", str(place / "headway.toml")]
    with on_one_core(command, port) as running:
        yield running


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[Running]:
    port = free_port()
    options = f"--bind 127.0.0.1 --port {port} --appendonly no --dir {folder}".split()
    with on_one_core([program("redis-server"), *options, "--save", ""], port) as running:
        yield running


@contextlib.contextmanager
def envoys_own(folder: Path, store: Running, rules: str = RULES) -> Iterator[Running]:
    port = free_port()
    config = folder / f"own-{port}" / "ratelimit" / "config"
    config.mkdir(parents=True)
    (config / "rules.yaml").write_text(rules)
    settings = {
        "RUNTIME_ROOT": str(config.parent.parent), "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_WATCH_ROOT": "false",
        "USE_STATSD": "false", "LOG_LEVEL": "error", "BACKEND_TYPE": "redis", "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{store.port}", "HOST": "127.0.0.1", "PORT": str(free_port()),
        "GRPC_HOST": "127.0.0.1", "GRPC_PORT": str(port), "DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": str(free_port()),
    }  # fmt: skip
    with on_one_core([program("ratelimit", "service_cmd")], port, **settings) as running:
        yield running


@contextlib.contextmanager
def throttlecrab() -> Iterator[Running]:
    port = free_port()
    command = [program("throttlecrab-server"), "--grpc", "--grpc-host", "127.0.0.1", "--grpc-port", str(port)]
    with on_one_core([*command, "--log-level", "error"], port) as running:
        yield running


# -- decisions per second --------------------------------------------------------------------------------------


def sample(side: Side, seconds: float) -> Sample:
    before = sum(each.cpu() for each in side.processes)
    answered, good, took, *_ = grpc_load().run(
        side.port, side.path, side.messages, CONNECTIONS, STREAMS, seconds
    )
    used = sum(each.cpu() for each in side.processes) - before
    if good < answered - CONNECTIONS * STREAMS or not answered:
        raise NotMeasured(f"of {answered} calls {good} had an answer")
    return Sample(answered / max(used, 0.01), answered / took)


def compare(ours: Side, theirs: Side, effort: Effort) -> tuple[Reading, Sample, Sample]:
    """The quotient of the two, sample by sample."""
    rounds = 3 if effort.quick else 9
    length = min(effort.seconds, 1.0)
    for side in (ours, theirs):
        sample(side, length / 2)  # warm
    pairs = [(sample(ours, length), sample(theirs, length)) for _ in range(rounds)]
    quotients = sorted(a.per_core / b.per_core for a, b in pairs)
    middle = [
        Sample(*(statistics.median(column) for column in zip(*side, strict=True)))
        for side in zip(*pairs, strict=True)
    ]
    note = (
        f"{middle[0].per_core:,.0f} and {middle[1].per_core:,.0f} a second of the core; "
        f"{middle[0].per_second:,.0f} and {middle[1].per_second:,.0f} a second of the clock in this run"
    )
    quarter = len(quotients) // 4
    reading = Reading(statistics.median(quotients), quotients[quarter], quotients[-1 - quarter], note=note)
    return reading, middle[0], middle[1]


def on_its_core(probe: Callable[[Effort, Path], Findings]) -> Callable[[Effort], Findings]:
    """Run a probe with the load on its own core, and put things back."""

    def run(effort: Effort) -> Findings:
        cores = os.sched_getaffinity(0)
        on_load_core()
        try:
            with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
                return probe(effort, Path(folder))
        finally:
            os.sched_setaffinity(0, cores)

    return run


@on_its_core
def beside_throttlecrab(effort: Effort, folder: Path) -> Findings:
    with headway_serve(folder) as ours, throttlecrab() as theirs:
        reading, *_ = compare(
            Side(ours.port, ENVOYS, envoys_messages(KEYS), [ours]),
            Side(theirs.port, CRABS, crabs_messages(KEYS), [theirs]),
            effort,
        )
    return Findings({"rls-throttlecrab": reading})


@on_its_core
def beside_envoys_own(effort: Effort, folder: Path) -> Findings:
    messages = envoys_messages(KEYS)
    with redis(folder) as store, envoys_own(folder, store) as theirs:
        other = Side(theirs.port, ENVOYS, messages, [theirs, store])
        with headway_serve(folder) as ours:
            memory, *_ = compare(Side(ours.port, ENVOYS, messages, [ours]), other, effort)
        with headway_serve(folder, transport="grpcio") as ours:
            fall_back, *_ = compare(Side(ours.port, ENVOYS, messages, [ours]), other, effort)
    return Findings({"rls-memory": memory, "rls-grpcio": fall_back})


@on_its_core
def on_redis(effort: Effort, folder: Path) -> Findings:
    found = {}
    with (
        redis(folder) as store,
        envoys_own(folder, store) as theirs,
        headway_serve(folder, f"redis://127.0.0.1:{store.port}/0") as ours,
    ):
        for name, keys in (("rls-redis", KEYS), ("rls-redis-hot", 1)):
            messages = envoys_messages(keys)
            found[name], *_ = compare(
                Side(ours.port, ENVOYS, messages, [ours, store]),
                Side(theirs.port, ENVOYS, messages, [theirs, store]),
                effort,
            )
    return Findings(found)


# -- a real Envoy in front -------------------------------------------------------------------------------------

TYPES = "type.googleapis.com/envoy.extensions.filters"
FRONT = """
static_resources:
  listeners:
    - name: front
      address: { socket_address: { address: 127.0.0.1, port_value: %(front)d } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": %(types)s.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: front
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: { prefix: "/" }
                          route: { cluster: upstream }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
                http_filters:
%(filter)s
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: upstream
      type: STATIC
      load_assignment:
        cluster_name: upstream
        endpoints:
          - lb_endpoints:
              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: %(behind)d } } }
    - name: limits
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      load_assignment:
        cluster_name: limits
        endpoints:
          - lb_endpoints:
              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: %(limits)d } } }
"""
FILTER = """
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: d
                      timeout: 5s
                      failure_mode_deny: true
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: { envoy_grpc: { cluster_name: limits } }
"""
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@contextlib.contextmanager
def upstream() -> Iterator[int]:
    """Answers every request with two bytes, on the core of the load."""

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.wfile.write(ANSWER)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextlib.contextmanager
def envoy(folder: Path, behind: int, limits: int) -> Iterator[Running]:
    """An Envoy on the core of servers; `limits` 0: without the filter."""
    front = free_port()
    place = folder / f"envoy-{front}.yaml"
    ports = {"front": front, "behind": behind, "limits": limits or 1, "types": TYPES}
    place.write_text(FRONT % {**ports, "filter": FILTER.strip("\n") if limits else ""})
    binary = program("envoy", near=str(ROOT / "build" / "envoy" / "bin"))
    command = [binary, "-c", str(place), "--disable-hot-restart", "--concurrency", "1", "-l", "critical"]
    with on_one_core(command, front) as running:
        yield running


def latencies(port: int, calls: int) -> list[float]:
    """Microseconds of each call, one after another on one connection."""
    asked = [b"GET / HTTP/1.1\r\nhost: x\r\nx-user: user-%d\r\n\r\n" % (n % KEYS) for n in range(calls)]
    found = []
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data in asked:
            begin = time.perf_counter_ns()
            connection.sendall(data)
            answer = connection.recv(65536)
            while not answer.endswith(b"ok"):
                more = connection.recv(65536)
                if not more:
                    raise NotMeasured("Envoy has closed the connection")
                answer += more
            found.append((time.perf_counter_ns() - begin) / 1000)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise NotMeasured(f"Envoy answers {answer[:60]!r}")
    return found


@on_its_core
def behind_envoy(effort: Effort, folder: Path) -> Findings:
    rounds, calls = (5, 200) if effort.quick else (15, 400)
    with contextlib.ExitStack() as stack:
        behind = stack.enter_context(upstream())
        store = stack.enter_context(redis(folder))
        ours = stack.enter_context(headway_serve(folder))
        theirs = stack.enter_context(envoys_own(folder, store))
        fronts = [stack.enter_context(envoy(folder, behind, port)) for port in (0, ours.port, theirs.port)]
        for front in fronts:
            latencies(front.port, calls)
        taken: list[list[float]] = [[], [], []]
        quotients = []
        for _ in range(rounds):
            found = [latencies(front.port, calls) for front in fronts]
            for whole, part in zip(taken, found, strict=True):
                whole.extend(part)
            bare, own, other = map(statistics.median, found)
            if other > bare:
                quotients.append(max(0.0, own - bare) / (other - bare))
    if not quotients:
        raise NotMeasured("the filter cost nothing: the machine is too busy to see it")
    said = [f"{statistics.median(part):.0f}/{statistics.quantiles(part, n=100)[98]:.0f}" for part in taken]
    note = f"p50/p99 in us: {said[0]} without the filter, {said[1]} with headway, {said[2]} with envoyproxy/ratelimit"
    quotients.sort()
    quarter = len(quotients) // 4
    reading = Reading(statistics.median(quotients), quotients[quarter], quotients[-1 - quarter], note=note)
    return Findings({"rls-envoy": reading})


OVER_CRAB = "`memory://`, over throttlecrab's gRPC server (Rust)"
OVER_OWN = "`memory://`, over envoyproxy/ratelimit and its Redis"
FALL_BACK = "the same on grpcio, where libnghttp2 is not to be had"
MANY_KEYS = "on the same Redis, 1,000 keys, over envoyproxy/ratelimit"
ONE_KEY = "on the same Redis, one key, over envoyproxy/ratelimit"
ADDED = "a real Envoy in front: added p50, over what envoyproxy/ratelimit adds"

SECTION = Section(
    "rls",
    "Envoy's rate limit service: decisions per second of the server's core, over those of others",
    (
        Figure("rls-throttlecrab", OVER_CRAB, beside_throttlecrab, ">=", 1.5, "x"),
        Figure("rls-memory", OVER_OWN, beside_envoys_own, ">=", 10, "x"),
        Figure("rls-grpcio", FALL_BACK, beside_envoys_own, ">=", None, "x"),
        Figure("rls-redis", MANY_KEYS, on_redis, ">=", 1.7, "x"),
        Figure("rls-redis-hot", ONE_KEY, on_redis, ">=", 4, "x"),
        Figure("rls-envoy", ADDED, behind_envoy, "<=", 0.6, "x"),
    ),
)
