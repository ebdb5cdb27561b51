# mypy: disable-error-code="arg-type, union-attr"
"""Two limits of one name: the one that was declared last governs, is shown by all, and is told of once."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from headway import Bucket, Concurrency, FixedWindow, Limiter, Window


def two_limits(url, name, older, newest, **options):
    """Two processes, in effect: engines of their own."""
    first = Limiter(older, name=name, engine=url, **options)
    first.peek("k" if isinstance(older, dict) else None)
    time.sleep(0.002)  # the one that is declared later has a later time
    return first, Limiter(newest, name=name, engine=f"{url}?lease=5", **options)


@pytest.mark.parametrize(
    ("older", "newest", "limit"),
    [
        ("5/s", "50/s", Window(50, per=1)),
        ("5/s burst 5", "50/s burst 50", Bucket("50/s", burst=50)),
        ("5/day aligned", "50/day aligned", FixedWindow(50, per="day")),
        ("5 concurrent", "50 concurrent", Concurrency(50)),
    ],
)
def test_the_limit_that_is_shown_is_the_one_that_governs(valkey, name, caplog, older, newest, limit):
    a, b = two_limits(valkey.url, name, older, newest, remote=None)
    kept = [b.try_acquire()]
    status = a.peek()
    assert status.limit == limit
    assert 40 < status.remaining <= 50
    assert asyncio.run(a.peek_async()).limit == limit
    assert b.peek().limit == limit
    kept += [a.try_acquire() for _ in range(60)]
    assert next(one for one in kept if not one).status.limit == limit
    for permit in filter(None, kept):
        permit.complete()
    told = [
        record for record in caplog.records if "the one that was declared last governs" in record.getMessage()
    ]
    assert len(told) == 2  # each engine here is a process in effect, and each of them says it once
    for record in told:
        assert record.levelno == logging.WARNING
        assert repr(older) in record.getMessage()
        assert record.getMessage().endswith(f"which is {newest!r}")


def test_the_limits_of_metrics_are_shown_as_they_govern(valkey, name):
    older, newest = ({"calls": f"{n}/s; {n} concurrent", "tokens": f"{n}00/minute"} for n in (5, 50))
    a, b = two_limits(valkey.url, name, older, newest)
    b.peek("k")
    shown = [part.limit for part in a.peek("k").parts]
    assert [str(limit) for limit in shown] == ["50/s", "50 concurrent", "5000/minute"]


def test_a_limit_that_governs_is_not_news_when_it_is_changed_on_purpose(valkey, name, caplog):
    limiter = Limiter("5/s", name=name, engine=valkey.url)
    assert limiter.try_acquire()
    limiter.set_limit("50/s")
    assert limiter.try_acquire()
    assert limiter.peek().limit == Window(50, per=1)
    assert "governs" not in caplog.text
