# mypy: disable-error-code="arg-type, dict-item, func-returns-value, union-attr"
"""Keys with a limit of their own, on a server: what only a server is particular about."""

import pytest

from headway import Limiter, Spacing
from headway.errors import InvalidArgument


def test_a_spacing_of_a_key_has_an_allowance_of_its_own(server, name):
    """Who may be late by 1 % of a long interval may not be late by as much of a short one."""
    limiter = Limiter("1 every 10s", name=name, engine=server.url, overrides={"vip": "1 every 500ms"})
    limit = limiter.peek("vip").limit
    assert isinstance(limit, Spacing)
    assert limit.expire_after_ns is not None
    assert 5_000_000 <= limit.expire_after_ns < 100_000_000
    assert limiter.acquire("vip").expires_in <= limit.expire_after_ns / 1e9
    with pytest.raises(InvalidArgument, match="twice the round trip"):
        Limiter("1/s", name=name, engine=server.url, overrides={"vip": Spacing(1, expire_after="1ns")})


def test_metrics_keep_their_kinds(server, name):
    limits = {"calls": "10/minute", "tokens": "100/minute"}
    with pytest.raises(InvalidArgument, match="the same kinds"):
        Limiter(limits, name=name, engine=server.url, overrides={"vip": {"calls": "5 concurrent"}})
