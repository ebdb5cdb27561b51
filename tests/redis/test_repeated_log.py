# mypy: disable-error-code="attr-defined"
"""What goes wrong again and again is logged once, and then once a minute with a count."""

import contextlib
import logging

from headway import EngineUnavailable, Limiter
from headway.engines.repeated_log import RepeatedLog

OOM = "OOM command not allowed when used memory > 'maxmemory'. script: {sha}, on @user_script:{line}."


class Time:
    seconds = 0

    def now(self):
        return self.seconds * 1_000_000_000


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_numbers_do_not_make_a_text_another(caplog):
    time = Time()
    repeated = RepeatedLog(time.now)
    for line in range(911):
        repeated.warning("engine e", OOM.format(sha=f"{line:040x}", line=line), "ReplyError: ")
    repeated.warning("engine e", OOM.format(sha="f" * 40, line=1))
    assert len(lines(caplog)) == 1
    assert lines(caplog)[0].startswith("engine e: ReplyError: OOM command not allowed")
    repeated.warning("engine e", "LOADING")
    repeated.warning("engine f", "LOADING")
    assert len(lines(caplog)) == 3


def test_once_a_minute_with_a_count(caplog):
    time = Time()
    repeated = RepeatedLog(time.now)
    for time.seconds in range(180):
        repeated.warning("engine e", f"no answer from port {time.seconds}")
    assert lines(caplog) == [
        "engine e: no answer from port 0",
        "engine e: no answer from port 60 (59 more since the last line like this)",
        "engine e: no answer from port 120 (59 more since the last line like this)",
    ]


def test_after_a_recovery_it_is_news(caplog):
    time = Time()
    repeated = RepeatedLog(time.now)
    repeated.warning("engine e", "gone")
    for time.seconds in range(1, 20):  # connections come and go: that is no recovery
        repeated.recovered()
        repeated.warning("engine e", "gone")
    assert len(lines(caplog)) == 1
    time.seconds = 30
    repeated.recovered()
    repeated.warning("engine e", "gone")
    assert len(lines(caplog)) == 2


def test_a_full_server_is_told_of_once(make_server, name, caplog):
    server = make_server()
    limiters = [
        Limiter(limit, name=f"{name}{limit}", engine=server.url)
        for limit in ("1000/s", "5 concurrent", "1000/s; 10000/minute")
    ]
    permits = [limiter.acquire() for limiter in limiters]
    server.client().config_set("maxmemory", 1)
    caplog.clear()
    for limiter in limiters * 30:
        with contextlib.suppress(EngineUnavailable):
            limiter.acquire(timeout=0)
    for permit in permits:
        permit.complete()
    assert len([line for line in lines(caplog) if "OOM" in line]) == 1
    server.client().config_set("maxmemory", 0)
