"""`headway top`, `inspect` and `reset` of ledgers of which clients hold tokens."""

import json

import pytest
from tests.redis.lease_clients import SECOND, LeaseClient, end, take
from typer.testing import CliRunner

from headway import Bucket, Concurrency, FixedWindow, Limiter, Window
from headway.cli.app import app

LIMITS = {
    "window": Window(20, per=60, remote=False),
    "bucket": Bucket("20/minute", burst=20),
    "fixed": FixedWindow(20, per="day"),
    "concurrency": Concurrency(20),
}


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def lent(valkey, connect, request):
    """A ledger of 20 of which two clients hold as many as there are."""
    limit = LIMITS[request.param]
    engine = connect(valkey.url)
    clients = [LeaseClient(engine, limit, "api", client, ttl=60 * SECOND) for client in ("one", "two")]
    clients[0].sync(want=12)
    clients[1].sync(want=8)
    return valkey.url, clients, limit


@pytest.mark.parametrize("lent", LIMITS, indirect=True)
def test_top_and_inspect_tell_what_is_lent(lent):
    url, clients, _ = lent
    held = [client.held[0] for client in clients]
    (told,) = json.loads(run("top", url, "--json"))["ledgers"]
    assert (told["lent"], told["holders"], told["capacity"]) == (sum(held), 2, 20)
    assert told["remaining"] == 20 - sum(held)
    assert 50 < told["lease_left"] <= 60
    table = run("top", url, "--once")
    assert f"{sum(held)} to 2 clients" in table
    text = run("inspect", url, "api")
    assert f"{sum(held)} tokens to 2 clients" in text
    assert f"one, {held[0]} tokens, wants 12, lease" in text
    data = json.loads(run("inspect", url, "api", "--json"))
    assert sorted((one["client"], one["tokens"]) for one in data["holders"]) == [
        ("one", held[0]),
        ("two", held[1]),
    ]


@pytest.mark.parametrize("lent", LIMITS, indirect=True)
def test_reset_makes_new_what_is_not_lent(lent):
    url, clients, limit = lent
    clients[1].sync(close=True)
    (held,) = clients[0].held
    direct = Limiter(limit, name="api", engine=url, engine_timeout=2)
    for _ in range(2):
        permits = take(direct, 22)
        assert len(permits) == 20 - held
        run("reset", url, "api", "--yes")
        end(permits)
    (answer,) = clients[0].sync(want=12)
    assert answer.lease
    assert not answer.void
    direct.close()


def test_a_ledger_that_lends_nothing_has_no_column_for_it(valkey):
    limiter = Limiter("3/minute", name="api", engine=valkey.url)
    limiter.acquire()
    assert "lent" not in run("top", valkey.url, "--once")
    limiter.close()
