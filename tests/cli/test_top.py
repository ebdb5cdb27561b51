"""`headway top`, `inspect` and `reset` on real servers, while limiters go on using the ledgers."""

import asyncio
import itertools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.redis.engine_checks import check_reset
from tests.redis.servers import eventually
from typer.testing import CliRunner

from headway import AllOf, Bucket, Concurrency, FixedWindow, Limiter, LimiterEvent, Remote, Spacing, Window
from headway.cli.app import app
from waiting import NEVER, SOON

LIMITS = {
    "bucket": Bucket("1/minute", burst=3),
    "window": Window(3, per=60),
    "remote": Window(3, per=60, remote=Remote()),
    "spacing": Spacing(60),
    "fixed": FixedWindow(3, per="day"),
    "concurrency": Concurrency(3),
    "both": AllOf("3/minute", "2 concurrent"),
}


IN_WORDS = {
    "bucket": ["2 of 3 permits", "one permit every 60 s, up to 3 saved up", "full again at 20"],
    "window": ["3 permits; each is free again 60 s after its grant", "2 free; 1 spent, free again at 20"],
    "remote": [
        "s after its call has ended; a call that reports no end counts as ended after 15 s",
        "1 in use since",
    ],
    "spacing": ["one slot every 60.6 s, up to 100 reserved ahead", "the last slot was at 20", "in 60"],
    "fixed": ["at most 3 in each period of the calendar", "1 used in the period that ends at 20"],
    "concurrency": [
        "at most 3 at the same time",
        "1 permit, granted to calls that have not ended yet",
        "lease ends at",
    ],
    "both": ["each is free again 60 s after its grant", "at most 2 at the same time"],
}
NAME = "api"

_numbers = itertools.count()


@pytest.fixture
def url(server):
    """A namespace for each test: a limiter of the last one may still look after its ledger, which is flushed by now."""
    return f"{server.url}?namespace=test{next(_numbers)}"


def process_of(limiter):
    return limiter._shared._engine.process.decode()


def first_left(limiter):
    """What is left of the first of its limits."""
    status = limiter.peek()
    return (status.parts or (status,))[0].remaining


def headway(*args, **options):
    return CliRunner().invoke(app, list(args), **options)


def ledgers(url, *args):
    result = headway("top", url, "--json", *args)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)["ledgers"]


@pytest.mark.parametrize("kind", LIMITS)
def test_top_says_what_peek_says(url, kind):
    limiter = Limiter(LIMITS[kind], name=NAME, engine=url)
    permit = limiter.acquire("alice")
    status = limiter.peek("alice")
    (row,) = ledgers(url)
    assert (row["name"], row["key"], row["metric"]) == (NAME, "alice", None)
    assert row["remaining"] == status.remaining
    assert row["in_flight"] == status.in_flight
    assert row["waiting"] == status.waiting
    assert row["next_permit"] == pytest.approx(status.retry_after, abs=1)
    assert row["exact"] is status.exact
    assert row["seen"] < 10
    permit.complete()


def test_top_of_metrics_and_of_names_with_odd_characters(url):
    llm = Limiter({"requests": "5/minute", "tokens": "100/minute; 90/minute"}, name="a:b/{c}", engine=url)
    llm.acquire({"tokens": "ü:*"}, cost={"tokens": 30})
    Limiter("3/minute", name="other", engine=url).acquire()
    shown = headway("top", url, "--once")
    assert shown.exit_code == 0
    assert [row["metric"] for row in ledgers(url, "--filter", "a:b")] == ["requests", "tokens"]
    (tokens,) = ledgers(url, "--filter", "*tokens*")
    assert (tokens["name"], tokens["key"], tokens["remaining"]) == ("a:b/{c}", "ü:*", 60)
    assert tokens["limit"] == "100/minute; 90/minute"
    assert "a:b/{c}/tokens    ü:*  100/minute; 90/minute  60/90" in shown.output
    assert "2/3" in shown.output


def test_top_shows_waiters_and_pauses_and_how_many_ledgers_are_not_shown(url):
    for number in range(5):
        Limiter("3/minute", name=f"limit{number}", engine=url).acquire()
    slow = Limiter(Spacing(60), name="slow", engine=url)
    slow.acquire()
    slow.reserve()
    slow.reserve()
    paused = Limiter("3/minute", name="paused", engine=url)
    paused.pause(100)
    shown = headway("top", url, "--once").output
    assert shown.splitlines()[1].startswith("slow")
    assert ledgers(url)[0]["waiting"] == 2
    assert "reserved     2 slots" in headway("inspect", url, "slow").output
    later = Limiter(Spacing(60), name="later", engine=url)
    later.acquire()
    later.reserve()
    assert "reserved     1 slot, promised" in headway("inspect", url, "later").output
    (row,) = ledgers(url, "--filter", "paused")
    assert 90 < row["pause"] <= 100
    assert row["remaining"] == 0
    assert "pause" in shown
    few = headway("top", url, "--once", "--max", "2").output
    assert "and 6 more" in few
    assert len(few.splitlines()) == 4


def test_ledgers_with_waiters_come_first_of_those_that_are_read_as_the_help_says(url):
    Limiter("3/minute", name="api", engine=url).acquire()
    slow = Limiter(Spacing(60), name="slow", engine=url)
    slow.acquire()
    slow.reserve()
    assert [row["name"] for row in ledgers(url)] == ["slow", "api"]
    assert [row["name"] for row in ledgers(url, "--max", "1")] == ["api"]
    told = " ".join(headway("top", "--help").output.split())
    assert "Of the ledgers that are read (--max, by name), those with waiters come first." in told


def test_top_does_not_count_what_it_never_shows(url):
    """Beside the ledgers of metrics lies what they have in common, which is no ledger."""
    Limiter("3/minute", name="api", engine=url).acquire()
    Limiter({"requests": "5/minute", "tokens": "100/minute"}, name="llm", engine=url).acquire()
    assert "and 2 more" in headway("top", url, "--once", "--max", "1").output


def test_while_permits_are_out_the_next_one_is_not_promised(url):
    """A permit that is out has no time: the least that it can be is a tick, which would read as a promise."""
    limiter = Limiter("2 concurrent", name=NAME, engine=url)
    permits = limiter.acquire(), limiter.acquire()
    for command in (["top", url, "--once"], ["inspect", url, NAME]):
        shown = headway(*command).output
        assert "not known" in shown
        assert ">= " not in shown
    for permit in permits:
        permit.complete()


def test_a_user_that_may_only_read_can_use_top_and_inspect(make_server):
    server = make_server()
    limiter = Limiter(LIMITS["both"], name=NAME, engine=server.url)
    with limiter:
        rights = "~headway:* -@all +@read +eval_ro +time"
        server.client().execute_command("ACL SETUSER", "looker", "on", ">secret", *rights.split())
        url = server.url.replace("redis://", "redis://looker:secret@")
        assert [row["name"] for row in ledgers(url)] == [NAME]
        assert headway("inspect", url, NAME).exit_code == 0
        refused = headway("reset", url, NAME, "--yes")
        assert refused.exit_code == 1
        assert "no permissions" in refused.output.lower()
        assert "secret" not in refused.output


def test_a_ledger_whose_quarantine_was_cut_short_is_in_doubt(url, server):
    limiter = Limiter("5/day", name="daily", engine=url, max_quarantine=0)
    limiter.acquire()
    server.client().flushall()
    limiter.acquire()
    assert "in doubt 1 d" in headway("top", url).output
    assert [ledger["in_doubt"] > 86400 for ledger in ledgers(url)] == [True]
    assert "its quarantine cut short" in headway("inspect", url, "daily").output


HOSTILE = "\x1b]52;c;aGk=\x07\x1b[2J\rroot\n\x9b31m\u202eecila\u2066[red]x[/red]"
ESCAPED = repr(HOSTILE)


def test_names_and_keys_are_shown_escaped_and_cannot_fake_a_row(url):
    """A key is often a remote user's name. On a terminal: tests/cli/test_top_live.py."""
    limiter = Limiter({HOSTILE[:9]: "3/minute"}, name=HOSTILE, engine=url)
    limiter.acquire(HOSTILE)
    Limiter("3/minute", name="a b", engine=url).acquire("")
    table = headway("top", url).output.splitlines()
    assert [row.split("  ")[0] for row in table] == ["name", repr(f"{HOSTILE}/{HOSTILE[:9]}"), "'a b'"]
    (row,) = ledgers(url, "--filter", "*ecila*")
    assert (row["name"], row["key"]) == (HOSTILE, HOSTILE), "JSON has it whole"
    for command in (
        ["top", url],
        ["inspect", url, HOSTILE, HOSTILE],
        ["reset", url, HOSTILE, HOSTILE, "--yes"],
    ):
        shown = headway(*command, color=True)  # else click would take some of it out by itself
        assert shown.exit_code == 0, shown.output
        assert all(line.isprintable() for line in shown.output.split("\n"))
        assert ESCAPED in shown.output
    missing = headway("inspect", url, HOSTILE, "none\x1b[2J", color=True)
    assert (missing.exit_code, "\x1b" in missing.output) == (1, False)


def test_what_a_server_keeps_is_shown_escaped_too(url, server):
    Limiter("3/minute", name=NAME, engine=url).acquire()
    server.client().hset(f"{url.rpartition('=')[2]}:{{{NAME}}}", "l", HOSTILE)
    for command in (["top", url], ["inspect", url, NAME]):
        shown = headway(*command, color=True).output
        assert all(line.isprintable() for line in shown.split("\n"))
        assert ESCAPED[1:-1] in shown


def test_top_of_an_empty_server(url):
    assert headway("top", url, "--once").output == "no ledgers\n"
    assert ledgers(url) == []


def test_top_in_a_namespace_among_keys_of_others(url, server):
    client, space = server.client(), url.rpartition("=")[2]
    client.mset({f"{space}:{{{number}}}": 1 for number in range(3000)})
    client.hset(f"{space}:{{mine}}x", "m", "?")
    client.hset(f"{space}:{{older}}", "m", b"\0" * 200)
    assert ledgers(url) == []
    Limiter("3/minute", name="here", engine=url).acquire()
    assert [row["name"] for row in ledgers(url)] == ["here"]


def test_top_of_a_cluster(cluster):
    url = cluster.url
    limiters = [Limiter("3/minute", name=f"limit{number}", engine=url) for number in range(9)]
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_output_that_cannot_be_written_is_told_in_a_line(url):
    with Path("/dev/full").open("w") as sink:
        done = subprocess.run(
            [sys.executable, "-m", "headway.cli", "top", url, "--json"],
            stdout=sink, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "headway: <stdout>: No space left on device\n")


def test_what_would_be_refused_is_not_proposed():
    told = headway("top", "foo://:secret@somewhere").output
    assert told.startswith(
        "headway: engine='foo://somewhere' is not accepted; give one of redis://, redis+sentinel://"
    )
    assert "memory://" not in told


@pytest.mark.parametrize("kind", LIMITS)
def test_inspect_tells_everything(url, kind):
    limiter = Limiter(LIMITS[kind], name=NAME, engine=url)
    permit = limiter.acquire()
    result = headway("inspect", url, NAME)
    assert result.exit_code == 0, result.output
    for word in (
        "limit",
        "left",
        "next permit",
        "rule",
        "state",
        "as new",
        "limit set",
        "process",
        "expires",
    ):
        assert f"\n{word} " in result.output
    for code in ("capacity", "gap", "grid", "whole", "times in us"):
        assert code not in result.output, "a number without words"
    for words in IN_WORDS[kind]:
        assert words in result.output
    assert str(limiter.limit) in result.output
    assert process_of(limiter) in result.output
    data = json.loads(headway("inspect", url, NAME, "--json").output)
    (ledger,) = data["ledgers"]
    assert ledger["remaining"] == limiter.peek().remaining
    assert len(ledger["rules"]) == (2 if kind == "both" else 1)
    assert ledger["place"] == f"{url.rpartition('=')[2]}:{{{NAME}}}"
    assert next(iter(data["streams"])).startswith(process_of(limiter))
    assert data["ttl"] > 1
    permit.complete()


def test_inspect_shows_how_many_callers_of_which_process_wait(url):
    limiter = Limiter("1 concurrent", name=NAME, engine=url)

    async def main():
        held = await limiter.acquire_async()
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(2)]
        await asyncio.sleep(0.1)
        shown = await asyncio.to_thread(headway, "inspect", url, NAME)
        held.complete()
        for task in asyncio.as_completed(tasks):
            (await task).complete()
        return shown.output

    assert f"waiting      2 callers: 2 in process {process_of(limiter)}" in asyncio.run(main())


def test_inspect_of_a_key_of_metrics(url):
    llm = Limiter({"requests": "5/minute", "tokens": "100/minute"}, name="llm", engine=url)
    llm.acquire({"tokens": "bob"}, cost={"tokens": 30})
    shown = headway("inspect", url, "llm", "bob").output
    assert "llm/tokens, key bob" in shown
    assert "70 of 100 permits" in shown
    assert "requests, key" not in shown


@pytest.mark.parametrize("command", [["inspect"], ["reset", "--yes"]])
def test_a_ledger_that_is_not_there(url, command):
    result = headway(command[0], url, "unknown", "alice", *command[1:])
    assert result.exit_code == 1
    assert "no ledger of 'unknown' with key 'alice'" in result.output


@pytest.mark.parametrize("kind", LIMITS)
def test_reset_makes_a_ledger_as_new_and_no_client_takes_it_for_a_loss(url, server, kind):
    events: list[LimiterEvent] = []
    limiter = Limiter(LIMITS[kind], name=NAME, engine=url, on_event=events.append)
    full = first_left(limiter)
    permit = limiter.acquire()
    limiter.pause(60)
    result = headway("reset", url, NAME, "--yes")
    assert result.exit_code == 0, result.output
    assert first_left(limiter) == full
    again = limiter.try_acquire()
    assert again
    again.complete()
    permit.complete()
    left = full if kind == "concurrency" else full - 1
    eventually(lambda: first_left(limiter) == left, "one use since, and none from before")
    assert "quarantine" not in {event.kind for event in events}
    client = server.client()
    assert all(client.pttl(key) != -1 for key in client.scan_iter(f"{url.rpartition('=')[2]}:*"))


@pytest.mark.parametrize("limit", ["10/day aligned", "1/100s burst 10", "10/hour", "10 concurrent"])
def test_nothing_comes_back_for_what_was_taken_before_a_reset(url, limit):
    check_reset(Limiter(limit, name=NAME, engine=url), lambda: headway("reset", url, NAME, "--yes"))


def test_reset_does_not_end_a_quarantine(url, server):
    limiter = Limiter("5/minute", name=NAME, engine=url)
    limiter.acquire()
    server.client().flushall()
    assert getattr(limiter.try_acquire(), "reason", None) == "quarantine"
    for _ in range(2):
        (row,) = ledgers(url)
        assert 50 < row["quarantine"] <= 60
        assert row["remaining"] == 0
        assert headway("inspect", url, NAME).output.count("quarantine") == 1
        assert headway("reset", url, NAME, "--yes").exit_code == 0
    assert getattr(limiter.try_acquire(), "reason", None) == "quarantine"


def test_reset_of_one_key_of_metrics_leaves_the_others(url):
    llm = Limiter({"requests": "5/minute", "tokens": "100/minute"}, name="llm", engine=url)
    for key in ("bob", "eve"):
        llm.acquire({"tokens": key}, cost={"tokens": 30})
    assert headway("reset", url, "llm", "bob", "--yes").exit_code == 0
    assert [part.remaining for part in llm.peek({"tokens": "bob"}).parts] == [3, 100]
    assert [part.remaining for part in llm.peek({"tokens": "eve"}).parts] == [3, 70]


def test_reset_serves_the_waiters(url):
    limiter = Limiter("1 concurrent", name=NAME, engine=f"{url}{'&' if '?' in url else '?'}lease=300")
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
    assert headway("reset", url, NAME, "--yes").exit_code == 0
    assert served.wait(NEVER)
    assert (
        time.monotonic() - begin < SOON
    )  # by a message: the worker looks by itself after a third of the lease
    thread.join()
    held.complete()


def test_reset_asks_first(url):
    limiter = Limiter("3/minute", name="api", engine=url)
    limiter.acquire()
    for said in ("n\n", ""):
        result = headway("reset", url, "api", input=said)
        assert result.exit_code == 1
        assert "api: 3/minute; 2 of 3 left, 0 waiting" in result.output
        assert limiter.peek().remaining == 2
    assert headway("reset", url, "api", input="y\n").exit_code == 0
    assert limiter.peek().remaining == 3
