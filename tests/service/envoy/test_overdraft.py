"""Hits that are reported when they have been spent: charged beyond the limit, and paid before the next grant."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from headway.engines.uri import open_engine
from headway.testing import ManualClock
from service.envoy.asking import OK, OVER, ask, codes, descriptor, passed, remaining, request, service_of

LOOK = descriptor("tokens=a", hits_addend=0)
KINDS = ["100/minute", "100/minute aligned", "100/minute burst 100", "100/minute; 1000/day"]


def rules(limit="100/minute"):
    return f"""
  - {{key: tokens, limit: "{limit}", overdraft: true}}
  - {{key: tenant, limit: "{limit}", overdraft: true}}
  - {{key: calls, limit: 1/minute}}
"""


@pytest.fixture
def clock():
    return ManualClock()


@pytest.mark.parametrize("limit", KINDS)
def test_hits_that_do_not_fit_are_charged_and_paid_before_the_next_grant(clock, limit):
    service = service_of(rules(limit), clock=clock)
    ask(service, "tokens=a", hits_addend=90)
    assert ask(service, LOOK).overall_code is OK
    response = ask(service, "tokens=a", hits_addend=60)  # spent already
    assert (response.overall_code, codes(response)) == (OVER, [OVER])
    assert ask(service, LOOK).overall_code is OVER
    assert service.stats.of(("d", "tokens")).overdrawn == 60
    clock.advance(59)
    if "burst" in limit:
        clock.advance(30)  # 150 were spent: the last of them is earned after 90 s
        assert remaining(ask(service, LOOK))[0] <= 100
    elif "aligned" not in limit:
        assert ask(service, LOOK).overall_code is OVER
    clock.advance(61)
    assert ask(service, LOOK).overall_code is OK


def test_calls_that_were_under_way_together_are_all_charged(clock):
    """A look lets three calls begin while one token is left; what they used is counted, and stops the next ones."""
    service = service_of(rules(), clock=clock)
    ask(service, "tokens=a", hits_addend=99)
    clock.advance(30)
    for _ in range(3):
        ask(service, "tokens=a", hits_addend=50)
    clock.advance(31)  # the 99 do not count any more, the 150 do
    assert ask(service, LOOK).overall_code is OVER
    assert service.stats.of(("d", "tokens")).uncharged == 0
    clock.advance(30)
    assert remaining(ask(service, LOOK)) == [100]


def test_more_hits_than_the_limit_are_charged_too(clock):
    service = service_of(rules(), clock=clock)
    assert ask(service, "tokens=a", hits_addend=250).overall_code is OVER
    assert remaining(ask(service, LOOK)) == [0]


@pytest.mark.parametrize("limit", KINDS)
def test_any_number_of_hits_can_be_charged_any_number_of_times(clock, limit):
    service = service_of(rules(limit), clock=clock)
    for _ in range(9):
        assert ask(service, descriptor("tokens=a", hits_addend=2**64 - 1)).overall_code is OVER
    assert ask(service, LOOK).overall_code is OVER
    assert service.stats.of(("d", "tokens")).uncharged == 0
    assert (
        ask(service, descriptor("tokens=a", hits_addend=2**64 - 1, is_negative_hits=True)).overall_code is OK
    )


def test_the_other_descriptors_of_a_report_are_charged_as_well(clock):
    service = service_of(rules(), clock=clock)
    ask(service, "tokens=a", hits_addend=90)
    response = ask(service, "tokens=a", "tenant=t", hits_addend=30)
    assert codes(response) == [OVER, OK]
    assert remaining(ask(service, LOOK, descriptor("tenant=t", hits_addend=0))) == [0, 70]


def test_a_rule_without_overdraft_refuses_the_whole_request(clock):
    service = service_of(rules(), clock=clock)
    ask(service, "tokens=a", hits_addend=90)
    ask(service, "calls=x")
    assert ask(service, "tokens=a", "calls=x", descriptor("tokens=a", hits_addend=50)).overall_code is OVER
    assert remaining(ask(service, LOOK)) == [10]
    assert service.stats.of(("d", "tokens")).overdrawn == 0


def test_what_was_charged_beyond_the_limit_can_be_given_back(clock):
    service = service_of(rules(), clock=clock)
    ask(service, "tokens=a", hits_addend=90)
    ask(service, "tokens=a", hits_addend=60)
    ask(service, descriptor("tokens=a", hits_addend=90, is_negative_hits=True))
    assert remaining(ask(service, LOOK)) == [40]


def test_without_overdraft_nothing_is_charged(clock):
    service = service_of("  - {key: tokens, limit: 100/minute}", clock=clock)
    ask(service, "tokens=a", hits_addend=90)
    assert passed(service, "tokens=a", 3, hits_addend=60) == 0
    assert remaining(ask(service, LOOK)) == [10]


def test_on_a_shared_engine():
    folder = Path(tempfile.mkdtemp(prefix="headway-"))

    async def main():
        service = service_of(rules("100/hour"), engine=f"embedded://{folder}/ledgers", engine_timeout=10)
        for hits in (90, 60, 70):
            await service.decide(request("tokens=a", hits_addend=hits))
        figures = service.stats.of(("d", "tokens"))
        assert (figures.overdrawn, figures.uncharged) == (130, 0)
        assert (await service.decide(request(LOOK))).overall_code is OVER
        # What is owed is seen under a higher limit: 220 were spent in all.
        limiter = service._limiters.of_rule(service.config.rules()[0]).limiter
        limiter.set_limit("300/hour")
        for _ in range(1000):  # a settlement is posted, and not waited for
            left = (await limiter.peek_async("a")).remaining
            if left == 80:
                break
            await asyncio.sleep(0.02)
        assert left == 80

    try:
        asyncio.run(main())
    finally:
        # The last user ends the server, while its directory is still there.
        open_engine(f"embedded://{folder}/ledgers", 10).close()
        shutil.rmtree(folder, ignore_errors=True)
