# mypy: disable-error-code="attr-defined, union-attr"
"""Permits that come back without an end are counted in the ledger, each once, and shown by `top` and `inspect`."""

import json
import threading
import time

import pytest
from typer.testing import CliRunner

from headway import AllOf, Concurrency, Limiter, Remote, Window
from headway.cli.app import app
from headway.engines.redis.inspection.scanner import LedgerScanner
from waiting import NEVER, wait_until

pytestmark = pytest.mark.realtime

LEASE = 0.5
REMOTE = Remote(resolution=0, max_transit=LEASE)
LIMITS = {
    "concurrency": Concurrency(5),
    "window": Window(5, per=0.1, remote=REMOTE),
    "both": AllOf(Window(5, per=0.1, remote=REMOTE), Concurrency(5)),
}

HOLD = """
limiter = make({limit!r})
permits = [limiter.acquire() for _ in range(3)]
permits.pop().complete()
while limiter.peek().in_flight != 2: time.sleep(0.01)
say("holds two")
time.sleep(60)
"""


@pytest.fixture
def url(valkey):
    return f"{valkey.url}?lease={LEASE}"


def counted(url, name, key=None):
    """As `headway top` sees it."""
    return sum(view.abandoned for view in LedgerScanner(url, 2.0).of(name, key))


def fields(valkey, limiter):
    """The counters that are stored in a root."""
    root = limiter._shared.ledgers.registry.ledger((None,)).keys[0]
    return {field: int(value) for field, value in valkey.client().hgetall(root).items() if field[:1] == b"a"}


@pytest.mark.parametrize("kind", LIMITS)
def test_what_a_killed_holder_held_is_counted(crew, valkey, url, kind):
    """Row "a holder is killed" of docs/failures.md. A look is enough: `peek` counts what is over, without a request."""
    holder = crew.start(url, HOLD.format(limit=LIMITS[kind]))
    assert holder.hear() == "holds two"
    assert counted(url, crew.name) == 0
    holder.kill()
    wait_until(lambda: counted(url, crew.name), "the first one")
    limiter = Limiter(LIMITS[kind], name=crew.name, engine=url)
    wait_until(lambda: limiter.peek().remaining == 5, "all of them back")
    assert counted(url, crew.name) == 2
    assert fields(valkey, limiter) == {b"a%d" % i: 2 for i in range(1, 3 if kind == "both" else 2)}
    shown = CliRunner().invoke(app, ["inspect", url, crew.name, "--json"])
    (ledger,) = json.loads(shown.output)["ledgers"]
    assert (ledger["abandoned"], {rule["abandoned"] for rule in ledger["rules"]}) == (2, {2})
    assert "\nabandoned    2 permits" in CliRunner().invoke(app, ["inspect", url, crew.name]).output
    assert json.loads(CliRunner().invoke(app, ["top", url, "--json"]).output)["ledgers"][0]["abandoned"] == 2
    assert "abandoned" in CliRunner().invoke(app, ["top", url, "--once"]).output.splitlines()[0]


@pytest.mark.parametrize("kind", LIMITS)
def test_a_permit_that_is_given_up_counts_once(valkey, url, name, kind):
    """Its holder says so, and a window goes on counting it as out until its time is over."""
    limiter = Limiter(LIMITS[kind], name=name, engine=url)
    limiter.acquire(cost=2).abandon()
    wait_until(lambda: limiter.peek().remaining == 5, "both of them back")
    time.sleep(1.5 * LEASE)
    limiter.peek()
    assert counted(url, name) == 2
    assert set(fields(valkey, limiter).values()) == {2}


@pytest.mark.parametrize("kind", LIMITS)
def test_what_ends_or_lives_is_not_counted_and_costs_nothing(valkey, url, name, kind):
    limiter = Limiter(LIMITS[kind], name=name, engine=url)
    for end in ("complete", "cancel"):
        getattr(limiter.acquire(timeout=NEVER), end)()
    limiter.acquire(timeout=NEVER).settle(2)
    if kind == "concurrency":
        with limiter:
            time.sleep(3 * LEASE)  # its holder's process says that it lives
    wait_until(lambda: limiter.peek().remaining == 5, "all of them back")
    assert fields(valkey, limiter) == {}
    assert "abandoned" not in CliRunner().invoke(app, ["top", url, "--once"]).output


@pytest.mark.parametrize("kind", ["concurrency", "window"])
def test_another_number_keeps_the_count(crew, valkey, url, kind):
    """Two are counted when the limit changes; two more have expired, and no command has counted them yet."""
    old, new = LIMITS[kind], LIMITS[kind].share(2)
    for turn in (1, 2):
        holder = crew.start(url, HOLD.format(limit=old))
        assert holder.hear() == "holds two"
        holder.kill()
        wait_until(lambda turn=turn: counted(url, crew.name) == 2 * turn, "what it held")
        if turn == 1:
            limiter = Limiter(old, name=crew.name, engine=url)
            limiter.peek()
    assert fields(valkey, limiter) == {b"a1": 2}
    newer = Limiter(new, name=crew.name, engine=url)
    wait_until(lambda: newer.peek().remaining == 10, "the new limit")
    assert counted(url, crew.name) == 4
    assert fields(valkey, limiter) == {b"a1": 4}


@pytest.mark.parametrize("how", ["reset", "headway reset", "quarantine"])
@pytest.mark.parametrize("kind", LIMITS)
def test_a_ledger_that_begins_anew_has_counted_none(valkey, url, name, kind, how):
    limiter = Limiter(LIMITS[kind], name=name, engine=url)
    limiter.acquire().abandon()
    wait_until(lambda: limiter.peek().remaining == 5, "it is back")
    assert fields(valkey, limiter)
    if how == "reset":
        limiter.reset()
    elif how == "headway reset":
        assert CliRunner().invoke(app, ["reset", url, name, "--yes"]).exit_code == 0
    else:
        client, root = valkey.client(), limiter._shared.ledgers.registry.ledger((None,)).keys[0]
        # Of the past, as a replica has it: it knows the count, but not the last commands.
        past = client.hget(root, "m")
        limiter.acquire().complete()
        client.hset(root, "m", past)
        assert limiter.try_acquire().reason == "quarantine"
    assert fields(valkey, limiter) == {}
    assert counted(url, name) == 0


def test_more_than_one_in_a_hundred_are_warned_about_once(valkey, url, name):
    limiter = Limiter("100000/minute", name=name, engine=url, remote=True)

    def work():
        for number in range(600):
            permit = limiter.acquire()
            (permit.complete if number % 20 else permit.abandon)()

    with pytest.warns(RuntimeWarning, match="were abandoned") as told:
        work()
    assert len(told) == 1


def test_answers_that_are_too_slow_for_the_limit_are_warned_about_once(valkey, url, name):
    limiter = Limiter(Window(2000, per=0.2, remote=Remote()), name=name, engine=url)

    def work():
        permits = [limiter.acquire() for _ in range(600)]
        time.sleep(0.12)
        for permit in permits:
            permit.complete()

    with pytest.warns(RuntimeWarning, match="answers take .* of its rate") as told:
        work()
    assert len(told) == 1


def test_each_key_of_a_metric_has_a_count_of_its_own(valkey, url, name):
    limits = {"calls": Window(5, per=0.1, remote=REMOTE), "slots": Concurrency(5)}
    limiter = Limiter(limits, name=name, engine=url)
    limiter.acquire({"slots": "bob"}, cost={"slots": 3}).abandon()
    limiter.acquire({"slots": "eve"}).complete()
    wait_until(lambda: counted(url, name) == 1, "the call")
    assert counted(url, name, "bob") == 3
    assert counted(url, name, "eve") == 0
    limiter.reset({"slots": "bob"})
    assert counted(url, name, "bob") == 0


def said(caplog):
    return [record.message for record in caplog.records if "abandoned" in record.message]


def test_a_waiter_for_abandoned_permits_says_so_once(valkey, name, caplog):
    """A flaky network: each attempt leaves a permit behind, and the next one waits for it."""
    limiter = Limiter(Window(1, per=0.1, remote=REMOTE), name=name, engine=valkey.url, engine_timeout=NEVER)
    for _ in range(3):
        limiter.acquire(timeout=NEVER).abandon()
    (line,) = said(caplog)
    assert f"limiter '{name}'" in line
    for part in (
        "calls wait for permits that were abandoned",
        "answered=",
        "not_sent=",
        "max_transit",
    ):
        assert part in line


def test_a_waiter_that_was_there_before_says_so_too(valkey, name, caplog):
    limiter = Limiter(Window(1, per=0.1, remote=REMOTE), name=name, engine=valkey.url, engine_timeout=NEVER)
    permit = limiter.acquire()
    waiter = threading.Thread(target=lambda: limiter.acquire(timeout=NEVER).complete())
    waiter.start()
    wait_until(lambda: limiter.stats().waiting, "a waiter")
    assert said(caplog) == []
    permit.abandon()
    waiter.join(NEVER)
    assert len(said(caplog)) == 1


def test_of_other_kinds_and_without_waiters_nothing_is_said(valkey, name, caplog):
    seats = Limiter("1 concurrent", name=name, engine=f"{valkey.url}?lease={LEASE}", engine_timeout=NEVER)
    for _ in range(2):
        seats.acquire(timeout=NEVER).abandon()
    free = Limiter(
        Window(5, per=0.1, remote=REMOTE), name=f"{name}-free", engine=valkey.url, engine_timeout=NEVER
    )
    for _ in range(3):
        free.acquire().abandon()
    assert said(caplog) == []
