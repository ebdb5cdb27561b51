"""Names, keys and texts of servers reach messages, logs and reprs escaped: a terminal would obey them."""

import asyncio
import logging
import warnings

import pytest

from headway import Limiter
from headway.clock import SYSTEM
from headway.engines.redis.engine import Engine
from headway.engines.redis.net.connectors import Connector, SentinelConnector
from headway.engines.redis.net.server_checks import server_checks
from headway.engines.repeated_log import RepeatedLog
from headway.engines.uri import public
from headway.errors import EngineUnavailable, InvalidArgument, LimiterClosed, LimitMismatch, RateLimited
from headway.printable import printable
from headway.testing import Deadlock, ManualClock, run

HOSTILE = "\x1b]52;c;aGk=\x07\x1b[2J\rroot\n\x9b31m\x7f\u202eecila\u2066\u200f\ud800[red]"
ESCAPED = repr(HOSTILE)[1:-1]


def is_safe(text):
    return all(line.isprintable() for line in text.split("\n")) and ESCAPED in text


def test_every_character_that_a_terminal_obeys_is_escaped():
    controls = [*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x61C, 0xFEFF, 0xE0041]
    controls += [*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070)]
    for code in controls:
        shown = printable(f"a{chr(code)}b")
        assert (shown[:2], shown[-1]) == ("a\\", "b")
        assert shown.isprintable()
        assert printable(shown) == shown, "once is enough"
    assert printable("Zoë 你好 🙂 [red] a\\b") == "Zoë 你好 🙂 [red] a\\b"


def test_errors():
    errors = [
        RateLimited(1.0, limit="5/s", key=HOSTILE),
        LimiterClosed(HOSTILE),
        LimitMismatch(HOSTILE, "5/s", "6/s"),
        LimitMismatch("api", HOSTILE, "6/s"),
        LimitMismatch("api", "6/s", HOSTILE),
        EngineUnavailable("redis://db", HOSTILE),
        EngineUnavailable(f"redis://{HOSTILE}", "timed out"),
        InvalidArgument("engine", HOSTILE, "another"),
    ]
    assert [str(error) for error in errors if not is_safe(str(error))] == []


def test_reprs_of_limiters_permits_and_denials():
    limiter = Limiter("1/minute", name=HOSTILE)
    permit = limiter.acquire(HOSTILE)
    denied = limiter.try_acquire(HOSTILE)
    for thing in (limiter, permit, denied, Limiter({HOSTILE: "1/s"})):
        assert is_safe(repr(thing))
        assert is_safe(str(thing))
    with pytest.raises(RateLimited) as caught:
        limiter.acquire(HOSTILE, timeout=0)
    assert is_safe(str(caught.value))


def test_warnings_and_logs(caplog):
    clock = ManualClock(autojump=True)
    limiter = Limiter("1/2minutes", name=HOSTILE, clock=clock)
    limiter.acquire()
    limiter.acquire()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        permit = Limiter("1 concurrent").acquire(HOSTILE)
        del permit
    assert is_safe(str(caught[0].message))
    # The long wait, and the permit that was dropped.
    assert [is_safe(record.getMessage()) for record in caplog.records] == [True, True]


def test_what_a_server_says(caplog):
    class Met:
        address = "redis://db"
        repeated_log = RepeatedLog(SYSTEM.now)

    Engine.log_once(Met(), OSError(HOSTILE))  # type: ignore[arg-type]
    flow = server_checks(Met())  # type: ignore[arg-type]
    next(flow)
    flow.send(b"redis_version:7.0.0\r\n")
    flow.send([b"maxmemory", b"1000"])
    flow.send([b"maxmemory-policy", HOSTILE.encode(errors="surrogatepass")])
    first, second = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert is_safe(first)
    assert all(line.isprintable() for line in second.split("\n"))
    assert "\\x1b]52" in second


def test_addresses():
    way = Connector(object, object, {"host": HOSTILE, "port": 1})
    for shown in (
        public("redis://:secret@db\x1b/0"),
        public(f"embedded:///tmp/{HOSTILE}"),
        repr(way),
        SentinelConnector(way, [way], HOSTILE).name,
    ):
        assert shown.isprintable()
        assert "\\x1b" in shown


def test_names_of_tasks():
    async def main():
        await asyncio.create_task(asyncio.Event().wait(), name=HOSTILE)

    with pytest.raises(Deadlock) as caught:
        run(main())
    assert is_safe(str(caught.value))
