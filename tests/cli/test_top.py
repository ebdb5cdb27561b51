"""`headway top`, `inspect` and `reset` on real servers, with limiters that go on while somebody looks."""

import asyncio
import json
import threading
import time

import pytest
from tests.redis.servers import eventually
from typer.testing import CliRunner

from headway import AllOf, Bucket, Concurrency, FixedWindow, HeadwayError, Limiter, Remote, Spacing, Window
from headway.cli.app import app

LIMITS = {
    "bucket": Bucket("1/minute", burst=3),
    "window": Window(3, per=60),
    "remote": Window(3, per=60, remote=Remote()),
    "spacing": Spacing(60),
    "fixed": FixedWindow(3, per="day"),
    "concurrency": Concurrency(3),
    "both": AllOf("3/minute", "2 concurrent"),
}


def process_of(limiter):
    return limiter._engine.process.decode()


def headway(*args, **options):
    return CliRunner().invoke(app, list(args), **options)


def ledgers(server, *args):
    result = headway("top", server.url, "--json", *args)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)["ledgers"]


def writes(client):
    stats = client.info("commandstats")
    return {
        name: stats.get(f"cmdstat_{name}", {}).get("calls") for name in ("hset", "pexpire", "del", "keys")
    }


@pytest.mark.parametrize("kind", LIMITS)
def test_top_says_what_peek_says(server, kind):
    limiter = Limiter(LIMITS[kind], name=kind, engine=server.url)
    permit = limiter.acquire("alice")
    status = limiter.peek("alice")
    before = writes(server.client())
    (row,) = ledgers(server)
    assert writes(server.client()) == before
    assert (row["name"], row["key"], row["metric"]) == (kind, "alice", None)
    assert row["remaining"] == status.remaining
    assert row["in_flight"] == status.in_flight
    assert row["waiting"] == status.waiting
    assert row["next_permit"] == pytest.approx(status.retry_after, abs=1)
    assert row["exact"] is status.exact
    assert row["seen"] < 10
    permit.complete()


def test_top_of_metrics_and_of_names_with_odd_characters(server):
    llm = Limiter(
        {"requests": "5/minute", "tokens": "100/minute; 90/minute"}, name="a:b/{c}", engine=server.url
    )
    llm.acquire({"tokens": "ü:*"}, cost={"tokens": 30})
    Limiter("3/minute", name="other", engine=server.url).acquire()
    shown = headway("top", server.url, "--once")
    assert shown.exit_code == 0
    assert [row["metric"] for row in ledgers(server, "--filter", "a:b")] == ["requests", "tokens"]
    (tokens,) = ledgers(server, "--filter", "*tokens*")
    assert (tokens["name"], tokens["key"], tokens["remaining"]) == ("a:b/{c}", "ü:*", 60)
    assert tokens["limit"] == "100/minute; 90/minute"
    assert "a:b/{c}/tokens    ü:*  100/minute; 90/minute  60/90" in shown.output
    assert "2/3" in shown.output


def test_top_shows_those_who_wait_pauses_and_how_many_are_not_shown(server):
    for number in range(5):
        Limiter("3/minute", name=f"limit{number}", engine=server.url).acquire()
    slow = Limiter(Spacing(60), name="slow", engine=server.url)
    slow.acquire()
    slow.reserve()
    slow.reserve()
    paused = Limiter("3/minute", name="paused", engine=server.url)
    paused.pause(100)
    shown = headway("top", server.url, "--once").output
    assert shown.splitlines()[1].startswith("slow")
    assert ledgers(server)[0]["waiting"] == 2
    assert "reserved     2 slots" in headway("inspect", server.url, "slow").output
    (row,) = ledgers(server, "--filter", "paused")
    assert 90 < row["pause"] <= 100
    assert row["remaining"] == 0
    assert "pause" in shown
    few = headway("top", server.url, "--once", "--max", "2").output
    assert "and 5 more" in few
    assert len(few.splitlines()) == 4


def test_top_of_an_empty_server(server):
    assert headway("top", server.url, "--once").output == "no ledgers\n"
    assert ledgers(server) == []


def test_top_in_a_namespace_among_keys_of_others(server):
    client = server.client()
    client.mset({f"headway:{{{number}}}": 1 for number in range(3000)})
    client.hset("headway:{mine}x", "m", "?")
    client.hset("headway:{older}", "m", b"\0" * 200)
    Limiter("3/minute", name="here", engine=f"{server.url}?namespace=shop").acquire()
    result = headway("top", f"{server.url}?namespace=shop", "--json")
    assert [row["name"] for row in json.loads(result.output)["ledgers"]] == ["here"]
    assert ledgers(server) == []


def test_top_of_a_cluster(cluster):
    url = getattr(cluster, "url", None)
    try:
        limiters = [Limiter("3/minute", name=f"limit{number}", engine=url) for number in range(9)]
    except HeadwayError as error:
        pytest.skip(f"no clusters yet: {error}")
    for limiter in limiters:
        limiter.acquire()
    result = headway("top", url, "--json")
    assert result.exit_code == 0, result.output
    assert [row["name"] for row in json.loads(result.output)["ledgers"]] == [f"limit{n}" for n in range(9)]
    assert headway("reset", url, "limit4", "--yes").exit_code == 0
    assert limiters[4].peek().remaining == 3


@pytest.mark.parametrize("command", [["top"], ["inspect"], ["reset", "--yes"]])
def test_a_server_that_is_away_is_named_without_its_password(command):
    uri = "redis://:secret@127.0.0.1:1/0"
    result = headway(command[0], uri, *([] if command[0] == "top" else ["name"]), *command[1:])
    assert result.exit_code == 1
    assert "redis://127.0.0.1:1/0" in result.output
    assert "secret" not in result.output


def test_what_makes_no_sense_is_refused(tmp_path):
    for uri in ("http://:secret@somewhere", "memory://", f"embedded://{tmp_path}/none"):
        result = headway("top", uri)
        assert result.exit_code == 2
        assert "secret" not in result.output
        assert result.output.startswith("headway: ")


@pytest.mark.parametrize("kind", LIMITS)
def test_inspect_tells_everything(server, kind):
    limiter = Limiter(LIMITS[kind], name=kind, engine=server.url)
    permit = limiter.acquire()
    result = headway("inspect", server.url, kind)
    assert result.exit_code == 0, result.output
    for word in (
        "limit",
        "use",
        "next permit",
        "rule",
        "state",
        "as new",
        "epoch",
        "generation",
        "process",
        "expires",
    ):
        assert f"\n{word} " in result.output
    assert str(LIMITS[kind]) in result.output
    assert process_of(limiter) in result.output
    data = json.loads(headway("inspect", server.url, kind, "--json").output)
    (ledger,) = data["ledgers"]
    assert ledger["remaining"] == limiter.peek().remaining
    assert len(ledger["rules"]) == (2 if kind == "both" else 1)
    assert ledger["place"] == f"headway:{{{kind}}}"
    assert next(iter(data["streams"])).startswith(process_of(limiter))
    assert data["ttl"] > 1
    permit.complete()


def test_inspect_tells_who_waits(server):
    limiter = Limiter("1 concurrent", name="one", engine=server.url)

    async def main():
        held = await limiter.acquire_async()
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(2)]
        await asyncio.sleep(0.1)
        shown = await asyncio.to_thread(headway, "inspect", server.url, "one")
        held.complete()
        for task in asyncio.as_completed(tasks):
            (await task).complete()
        return shown.output

    assert f"waiting      2: 2 of process {process_of(limiter)}" in asyncio.run(main())


def test_inspect_of_a_key_of_metrics(server):
    llm = Limiter({"requests": "5/minute", "tokens": "100/minute"}, name="llm", engine=server.url)
    llm.acquire({"tokens": "bob"}, cost={"tokens": 30})
    shown = headway("inspect", server.url, "llm", "bob").output
    assert "llm/tokens, key bob" in shown
    assert "70 of 100 left" in shown
    assert "requests, key" not in shown


@pytest.mark.parametrize("command", [["inspect"], ["reset", "--yes"]])
def test_a_ledger_that_is_not_there(server, command):
    result = headway(command[0], server.url, "nobody", "alice", *command[1:])
    assert result.exit_code == 1
    assert "no ledger of 'nobody' with key 'alice'" in result.output


@pytest.mark.parametrize("kind", LIMITS)
def test_reset_makes_it_as_new_and_nobody_takes_it_for_a_loss(server, kind, caplog):
    limiter = Limiter(LIMITS[kind], name=kind, engine=server.url)
    full = limiter.peek().all[0].remaining
    permit = limiter.acquire()
    limiter.pause(60)
    result = headway("reset", server.url, kind, "--yes")
    assert result.exit_code == 0, result.output
    assert limiter.peek().all[0].remaining == full
    again = limiter.try_acquire()
    assert again
    again.complete()
    permit.complete()
    left = full if kind == "concurrency" else full - 1
    eventually(lambda: limiter.peek().all[0].remaining == left, "one use since, and none from before")
    assert not [record for record in caplog.records if "nothing is granted" in record.message]
    client = server.client()
    assert all(client.pttl(key) > 0 for key in client.scan_iter("headway:*"))


def test_reset_of_one_key_of_metrics_leaves_the_others(server):
    llm = Limiter({"requests": "5/minute", "tokens": "100/minute"}, name="llm", engine=server.url)
    for key in ("bob", "eve"):
        llm.acquire({"tokens": key}, cost={"tokens": 30})
    assert headway("reset", server.url, "llm", "bob", "--yes").exit_code == 0
    assert [part.remaining for part in llm.peek({"tokens": "bob"}).all] == [3, 100]
    assert [part.remaining for part in llm.peek({"tokens": "eve"}).all] == [3, 70]


def test_reset_serves_those_who_wait(server):
    limiter = Limiter("1 concurrent", name="one", engine=server.url)
    held = limiter.acquire()
    served = threading.Event()

    def wait():
        with limiter:
            served.set()

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    assert not served.is_set()
    begin = time.monotonic()
    assert headway("reset", server.url, "one", "--yes").exit_code == 0
    assert served.wait(5)
    assert time.monotonic() - begin < 1.5  # told, not found on the next round of the keeper (5 / 3 s)
    thread.join()
    held.complete()


def test_reset_asks_first(server):
    limiter = Limiter("3/minute", name="api", engine=server.url)
    limiter.acquire()
    for said in ("n\n", ""):
        result = headway("reset", server.url, "api", input=said)
        assert result.exit_code == 1
        assert "api: 3/minute; 2 of 3 left, 0 waiting" in result.output
        assert limiter.peek().remaining == 2
    assert headway("reset", server.url, "api", input="y\n").exit_code == 0
    assert limiter.peek().remaining == 3
