# mypy: disable-error-code="attr-defined, union-attr"
"""What docs/failures.md promises in each failure, and what it does not: every row of its table is proved by a test.

PROOFS says by which. Here are those rows for which the files on crashes, faults, outages and losses have none, or only
half of one: what is *not* promised is shown to be so, by no more than is said.
"""

import itertools
import re
import time
from pathlib import Path

import pytest
from tests.redis.load import Load, excess
from tests.redis.servers import HOST, eventually, in_step
from tests.redis.test_failover import REPLICATION, cut_replication
from tests.redis.workers import Crew, most_in_any

from headway import Bucket, Limiter, Remote, Spacing, Window
from headway.errors import EngineUnavailable
from waiting import NEVER, wait_until

pytestmark = pytest.mark.realtime

HERE = Path(__file__).parent
PROOFS = {
    "a holder is killed": [
        "test_crashes.py::test_what_a_killed_holder_held_comes_back",
        "test_abandoned.py::test_what_a_killed_holder_held_is_counted",
        "test_failure_table.py::test_a_slot_that_a_killed_process_reserved_is_lost",
    ],
    "a holder is stopped (": ["test_crashes.py::test_a_holder_that_was_stopped_too_long_does_not_spend"],
    "a holder is stopped *inside* its body": [
        "test_failure_table.py::test_a_holder_that_was_stopped_inside_its_body"
    ],
    "an answer is lost after the server acted": [
        "test_network_faults.py::test_a_command_whose_answer_was_dropped_is_applied_once",
        "test_network_faults.py::test_an_end_whose_answer_was_dropped_is_applied_once",
        "test_network_faults.py::test_an_end_that_is_refused_for_a_while_is_applied_once",
        "test_network_faults.py::test_cuts_under_load_neither_lose_nor_mint",
    ],
    "the server is restarted, append-only file": [
        "test_loss.py::test_a_restart_from_a_complete_file_is_none"
    ],
    "restarted with `appendfsync everysec`": [
        "test_loss.py::test_a_restart_that_may_have_forgotten_is_a_loss"
    ],
    "failover to a replica": [
        "test_failover.py::test_a_replica_that_sentinel_promotes_has_missed_grants",
        "test_failover.py::test_a_replica_that_a_cluster_promotes_has_missed_grants",
        "test_loss.py::test_a_failover_that_lost_grants",
    ],
    "`FLUSHALL`, `DEL`, eviction": [
        "test_loss.py::test_flushall_under_load",
        "test_loss.py::test_an_evicted_ledger_is_a_lost_one",
        "test_loss.py::test_a_ledger_of_which_a_part_was_evicted_is_a_lost_one",
        "test_failure_table.py::test_a_server_that_evicts",
        "test_failure_table.py::test_a_new_client_of_a_flushed_server",
    ],
    "the server's clock is set": [
        "test_clocks.py::test_the_clock_of_a_server_is_set_under_load",
        "test_clocks.py::test_a_release_after_a_clock_step_serves_no_waiter_by_the_new_time",
        "test_clocks.py::test_a_step_forward_is_not_seen_by_a_new_client",
        "test_clocks.py::test_a_small_step_forward_is_seen_too",
        "test_loss.py::test_a_clock_that_is_set_under_load",
        "test_loss.py::test_a_client_that_never_saw_the_old_time_is_not_frozen_by_it",
    ],
    "the server's clock drifts": ["test_clocks.py::test_a_clock_that_drifts_as_far_as_was_said"],
    "a client's wall clock is wrong": [
        "test_clocks.py::test_clients_whose_wall_clocks_are_wrong",
        "test_clocks.py::test_a_calendar_quota_goes_by_the_calendar_of_the_server",
    ],
    "a network partition": [
        "test_failure_table.py::test_clients_on_the_far_side_of_a_partition",
        "test_outages.py::test_every_verb_ends_in_time",
    ],
    "an isolated old primary": [
        "test_failure_table.py::test_an_isolated_old_primary_grants_as_much_again",
        "test_failure_table.py::test_an_isolated_old_primary_that_needs_a_replica_stops",
        "test_server_checks.py::test_a_primary_that_may_be_isolated",
    ],
}


def test_every_row_has_a_proof():
    text = (HERE.parents[1] / "docs" / "failures.md").read_text()
    table = text.partition("## Failure by failure")[2].partition("| --- | --- | --- |\n")[2]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.partition("\n\n")[0].splitlines()]
    assert len(rows) == len(PROOFS)
    assert [row for row, begin in zip(rows, PROOFS, strict=True) if not row.startswith(begin)] == []
    for proof in itertools.chain(*PROOFS.values()):
        file, _, test = proof.partition("::")
        assert re.search(rf"^def {test}\(", (HERE / file).read_text(), re.MULTILINE), proof


# -- holders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "step"),
    [(Spacing(1, expire_after=0.1), 1.1), (Bucket("1/s", burst=1), 1), (Window(1, per=1, remote=False), 1)],
    ids=["spacing", "bucket", "window"],
)
def test_a_slot_that_a_killed_process_reserved_is_lost(crew, valkey, limit, step):
    """No caller is given it, neither at once nor when its time comes: the next slot is a step later."""
    worker = crew.start(
        valkey.url,
        f"""
limiter = make({limit!r})
use()
limiter.acquire()
for _ in range(2): threading.Thread(target=limiter.acquire, daemon=True).start()
while limiter.peek().waiting < 2: time.sleep(0.01)
say("reserved")
time.sleep(60)
""",
    )
    assert worker.hear() == "reserved"
    worker.kill()
    (begin,) = crew.uses()
    limiter = Limiter(limit, name=crew.name, engine=valkey.url)
    limiter.acquire(timeout=NEVER)
    assert time.monotonic() - begin >= 3 * step


INSIDE = """
limiter = make({limit!r})
with limiter:
    say("inside")
    os.kill(os.getpid(), signal.SIGSTOP)
    use()
say("sent")
"""


@pytest.mark.parametrize("too_long", [False, True])
def test_a_holder_that_was_stopped_inside_its_body(crew, valkey, too_long):
    """What it sends after max_transit is one too many, and no more than that; before it, none is."""
    transit, per = 2.0, 1.0
    limit = Window(3, per=per, remote=Remote(resolution=0, max_transit=transit))
    worker = crew.start(valkey.url, INSIDE.format(limit=limit))
    assert worker.hear() == "inside"
    limiter = Limiter(limit, name=crew.name, engine=valkey.url)
    if too_long:
        # All three are free again only when what it holds has been given up.
        wait_until(lambda: limiter.peek().remaining == 3, "what it holds")
    uses = []
    while permit := limiter.try_acquire():
        uses.append(time.monotonic())
        permit.complete()
    worker.cont()
    assert worker.hear() == "sent"
    worker.join()
    most = most_in_any(per, sorted(uses + crew.uses()))
    assert most == (4 if too_long else 3)


# -- servers that forget ---------------------------------------------------------------------------------


def test_a_server_that_evicts(make_server, connect, caplog):
    """For real: it runs out of memory, and throws ledgers away to make room."""
    server = make_server(maxmemory_policy="allkeys-random")
    limiter = Limiter(
        Window(5, per=2, remote=False), name="evicted", engine=connect(f"{server.url}?lease=0.5")
    )
    assert all(limiter.try_acquire() for _ in range(5))
    begin = time.monotonic()
    client = server.client()
    client.config_set("maxmemory", 1)
    eventually(lambda: not client.exists("headway:{evicted}"), "an eviction")
    client.config_set("maxmemory", 0)
    assert client.info("stats")["evicted_keys"] >= 1
    assert limiter.try_acquire().reason == "quarantine"
    assert "its ledger was lost" in caplog.text
    limiter.acquire(timeout=NEVER)
    assert time.monotonic() - begin > 2


def test_a_new_client_of_a_flushed_server(valkey, connect):
    """It cannot miss what it never saw: at most twice the limit, until a client that knew the ledger asks."""
    limit = Window(5, per=2, remote=False)
    knows, new = (Limiter(limit, name="new", engine=connect(f"{valkey.url}?lease=0.5")) for _ in range(2))
    assert all(knows.try_acquire() for _ in range(5))
    valkey.client().flushall()
    assert sum(bool(new.try_acquire()) for _ in range(6)) == 5
    asked = time.monotonic()
    assert knows.try_acquire().reason == "quarantine"
    assert new.try_acquire().reason == "quarantine"
    new.acquire(timeout=NEVER)
    assert time.monotonic() - asked > 2


# -- networks --------------------------------------------------------------------------------------------


def test_clients_on_the_far_side_of_a_partition(crew, valkey, make_proxy):
    """They get no answer and use nothing. On this side all goes on, and no limiter is quarantined when it is over."""
    proxy = make_proxy(valkey)
    limit = Window(10, per=0.5, remote=Remote(resolution=0, max_transit=0.3))
    with Crew() as others:
        others.name = crew.name
        far = Load(crew, f"{proxy.url}?lease=0.5", limit, workers=2)
        near = Load(others, f"{valkey.url}?lease=0.5", limit, workers=2)
        for load in (far, near):
            load.run()
        proxy.stall()
        # What was answered before may be used for a lease; then there is silence, although the others go on.
        time.sleep(0.7)
        before, began = len(crew.uses()), time.monotonic()
        wait_until(lambda: len([use for use in others.uses() if use > began]) >= 20, "uses on this side")
        assert len(crew.uses()) == before
        proxy.heal()
        wait_until(lambda: len(crew.uses()) >= before + 10, "uses on the far side")
        for load in (far, near):
            load.stop()
        uses = sorted(far.end() + near.end())
    assert excess(limit, uses) <= 0
    assert not far.quarantines + near.quarantines


def isolate(make_server, **options):
    """A primary, and the replica that was promoted without its knowledge."""
    primary = make_server(**REPLICATION, **options)
    replica = make_server(replicaof=f"{HOST} {primary.port}", **REPLICATION, **options)
    in_step(replica)
    return primary, replica


LIMIT = Window(10, per=0.5, remote=Remote(resolution=0, max_transit=0.3))


def test_an_isolated_old_primary_grants_as_much_again(crew, make_server):
    """Two servers that both grant: each keeps the limit for those on its side, so that it is twice the limit."""
    primary, replica = isolate(make_server)
    with Crew() as others:
        others.name = crew.name
        old = Load(crew, f"{primary.url}?lease=0.5", LIMIT, workers=2).run()
        cut_replication(primary)
        replica.client().replicaof("NO", "ONE")
        new = Load(others, f"{replica.url}?lease=0.5", LIMIT, workers=2).run()
        begin = time.monotonic()
        wait_until(lambda: len([use for use in others.uses() if use > begin]) >= 40, "uses on the new side")
        for load in (old, new):
            load.stop()
        sides = old.end(), new.end()
    assert all(excess(LIMIT, uses) <= 0 for uses in sides)
    assert 0 < excess(LIMIT, sorted(itertools.chain(*sides))) <= LIMIT.count


def test_an_isolated_old_primary_that_needs_a_replica_stops(make_server, connect):
    """With min-replicas-to-write it grants nothing, from the moment on at which its replica is gone."""
    primary, replica = isolate(make_server, min_replicas_to_write=1, min_replicas_max_lag=1)
    limiter = Limiter(LIMIT, name="isolated", engine=connect(f"{primary.url}?strict=true&lease=1"))
    eventually(limiter.try_acquire, "a primary that knows of its replica").complete()
    held = limiter.acquire()
    cut_replication(primary)
    replica.client().config_set("min-replicas-to-write", 0)
    replica.client().replicaof("NO", "ONE")
    for _ in range(5):
        with pytest.raises(EngineUnavailable, match="NOREPLICAS"):
            limiter.try_acquire()
    held.complete()  # it raises no error, and no caller waits for it
    # Those on the other side wait for what the old one may have granted last, and go on alone.
    other = Limiter(LIMIT, name="isolated", engine=connect(f"{replica.url}?lease=0.5"))
    assert other.try_acquire().reason == "quarantine"
    other.acquire(timeout=NEVER).complete()
