# mypy: disable-error-code="attr-defined, union-attr"
"""The verbs of a limiter on a shared engine, as one process sees them: the same as in memory."""

import asyncio
import itertools
import time

import pytest
from tests.redis.servers import eventually
from tests.redis.workers import spent

import headway
from headway import (
    AcquireTimeout,
    AllOf,
    Bucket,
    Concurrency,
    FixedWindow,
    Limiter,
    Remote,
    Spacing,
    Window,
)

KINDS = [
    Bucket("1/s", burst=3),
    Window(3, per=1),
    Window(3, per=1, remote=Remote(max_transit=1)),
    FixedWindow(3, per="day"),
    Concurrency(3),
    AllOf("3/s", "5 concurrent"),
]

_names = itertools.count()


def kind_of(limit):
    return limit.kind + ("-remote" if getattr(limit, "remote", None) else "")


def test_a_spacing_is_kept(server, name):
    limiter = Limiter("1 every 40ms", name=name, engine=server.url)
    times = [spent(limiter.acquire()) for _ in range(6)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= 0.040


def test_200_tasks_travel_together(server, name):
    limiter = Limiter("1000000/s burst 1000", name=name, engine=server.url)
    client = server.client()

    async def main():
        await limiter.acquire_async()
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        await asyncio.gather(*(limiter.acquire_async() for _ in range(200)))
        return client.info("commandstats")["cmdstat_evalsha"]["calls"] - before

    assert asyncio.run(main()) <= 3
    assert limiter.stats().granted == 201


def test_throttle_takes_its_name_from_the_function(server):
    calls = []

    def call(number):
        calls.append(number)
        return number

    call.__qualname__ = "call"
    throttled = headway.throttle("2/minute", engine=server.url, timeout=0, on_limit="skip")(call)
    assert [throttled(1), throttled(2), throttled(3)] == [1, 2, None]
    assert throttled.limiter.name == f"{__name__}:call"
    with pytest.raises(headway.HeadwayError, match="another function in another process"):
        headway.throttle("2/minute", engine=server.url)(lambda: None)


def test_what_makes_no_sense_is_refused(server, name):
    for options, says in [
        ({}, "name"),
        ({"name": name, "start": "full"}, "survives"),
        ({"name": name, "on_engine_error": "maybe"}, "closed"),
        ({"name": name, "on_ledger_loss": "forget"}, "quarantine"),
        ({"name": name, "engine_timeout": 0}, "0.001"),
        ({"name": name, "engine_timeout": "soon"}, "engine_timeout='soon'"),
        ({"name": name, "max_quarantine": -1}, "None for no cap"),
        ({"name": name, "max_quarantine": "soon"}, "max_quarantine='soon'"),
        ({"name": name, "local_share": 0}, "above 0"),
    ]:
        with pytest.raises(headway.HeadwayError, match=says):
            Limiter("1/s", engine=server.url, **options)
    for options in ({"name": name}, {}):
        with pytest.raises(headway.HeadwayError, match=r"^engine='ftp://somewhere' .* redis://"):
            Limiter("1/s", engine="ftp://somewhere", **options)
    for wrong, shown in (
        (None, "None"),
        (6379, "6379"),
        (b"redis://:secret@db", "<class 'bytes'>"),
        ({"password": "secret"}, "<class 'dict'>"),
    ):
        with pytest.raises(headway.InvalidArgument, match=rf"^engine={shown} .* give a URI") as caught:
            Limiter("1/s", engine=wrong)
        assert "secret" not in str(caught.value)
    with pytest.raises(headway.HeadwayError, match="seconds='soon' is not accepted; give seconds from 0 up"):
        Limiter("1/s", name=name, engine=server.url).pause("soon")  # type: ignore[arg-type]
    with pytest.raises(headway.HeadwayError, match="shared engine"):
        Limiter("1/s", on_engine_error="open")
    with pytest.raises(headway.HeadwayError, match=r"2\*\*52"):
        Limiter("1000000007/s burst 10000000", name=name, engine=server.url)
    with pytest.raises(headway.HeadwayError, match="twice the round trip"):
        Limiter(Spacing(1, expire_after="1ns"), name=name, engine=server.url)


def test_an_abandoned_permit_is_known_to_take_its_transit(server, name):
    limiter = Limiter(Window(1, per=1, remote=Remote(max_transit=30)), name=name, engine=server.url)
    limiter.acquire().abandon()
    eventually(lambda: limiter.peek().exact, "the end of the permit on the server")
    assert limiter.peek().retry_after > 29
    begin = time.monotonic()
    with pytest.raises(AcquireTimeout, match=r"would have to wait"):
        limiter.acquire(timeout=20)
    assert time.monotonic() - begin < 10


def test_a_permit_has_the_status_after_its_grant(server, name):
    limiter = Limiter("3/minute", name=name, engine=server.url)
    permit = limiter.acquire("ann", cost=2)
    assert (permit.status.remaining, permit.status.denied) == (1, False)
    assert permit.status.headers()["X-RateLimit-Remaining"] == "1"
    meter = Limiter({"host": "2/minute", "all": "9/minute"}, name=name + "m", engine=server.url)
    assert meter.acquire({"host": "there"}).status["host"].remaining == 1


def test_an_exempt_key_needs_no_engine(server, name):
    limiter = Limiter("1/minute", name=name, engine=server.url, overrides={"vip": None, "ann": "2/minute"})
    assert all(limiter.try_acquire("vip", cost=9) for _ in range(20))
    assert all([asyncio.run(limiter.acquire_async("vip", timeout=0)), limiter.acquire("vip")])
    assert (limiter.peek("vip").retry_after, str(limiter.peek("vip").limit)) == (0, "unlimited")
    limiter.reset("vip")
    assert [bool(limiter.try_acquire("ann")) for _ in range(3)] == [True, True, False]
    assert [bool(limiter.try_acquire("bob")) for _ in range(2)] == [True, False]
    assert limiter.stats().granted == 25
    limiter.pause(30)
    assert not limiter.try_acquire("vip")
    limiter.pause(0)
    assert limiter.try_acquire("vip")
    with pytest.raises(headway.InvalidArgument, match="with metrics no key is exempt"):
        Limiter({"a": "1/s"}, name=name + "m", engine=server.url, overrides={"vip": None})


def test_reset_all_says_what_to_do(server, name):
    with pytest.raises(headway.InvalidUse, match=r"write `limiter.reset\(key\)`"):
        Limiter("1/minute", name=name, engine=server.url).reset_all()
