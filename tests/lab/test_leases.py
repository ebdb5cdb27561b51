"""Fleets in virtual time: how much passes, that nothing is above the limit, and that every broken rule is found.

The full tables, 1,000 worlds and 10,000 clients run by command: `python -m headway.lab.leases`.
"""

from __future__ import annotations

import subprocess
import sys
from random import Random

import pytest

from headway.core.holder import Holder, Terms
from headway.core.lease import LeaseLedger
from headway.core.limits import Bucket, Concurrency, FixedWindow, Window
from headway.lab.clocks import BILLION, Skewed
from headway.lab.leases.audit import above, above_slots
from headway.lab.leases.fleet import Fleet, Network, RoughNetwork
from headway.lab.leases.mutants import MUTANTS, hunt
from headway.lab.leases.tables import (
    CLIENTS,
    DEMANDS,
    accuracy,
    calls_per_decisions,
    large_fleet,
    moving_burst,
    near_the_limit,
)
from headway.lab.leases.traffic import even, poisson, split
from headway.lab.leases.worlds import draw, run_world

WORLDS = 100
"""So many worlds are enough for each mutant, wherever the seeds begin."""

every_clients = pytest.mark.parametrize("clients", CLIENTS)
every_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)

# Evenly spaced requests 400 ms apart (444 at 0.9) use a token that cools for 1 s every 1.2 s (1.333). Of 20 tokens that
# is five sixths of the demand, whichever client has them: docs/decisions/0023-capacity-leases.md.
OUT_OF_STEP = {("8 equal", 0.9): 0.8, ("8 equal", 1.0): 0.8}


@every_clients
@pytest.mark.parametrize("name", ["Window 20/s", "Bucket 20/s burst 20"])
def test_a_short_window_passes_what_it_can_and_never_more(name, clients):
    for demand in DEMANDS:
        row = accuracy(name, clients, demand)
        bar = OUT_OF_STEP.get((clients, demand), row.bar) if name.startswith("Window") else row.bar
        assert row.above == 0, row
        assert row.passed >= bar, row


@every_clients
def test_requests_that_wait_a_little_lose_nothing_to_being_out_of_step(clients):
    for demand in DEMANDS:
        row = accuracy("Window 20/s", clients, demand, waits=True)
        assert row.met, row


@every_clients
@pytest.mark.parametrize("name", ["Window 1200/min", "Bucket 1200/min burst 1200"])
def test_a_long_window_passes_what_it_can_and_never_more(name, clients):
    for demand in (0.9, 1.0, 1.1):
        row = accuracy(name, clients, demand, windows=3)
        assert row.met, row


@pytest.mark.parametrize(
    "limit", [Window(1200, per=60, remote=False), Bucket("1200/minute", burst=20)], ids=str
)
def test_a_burst_that_moves_from_one_client_to_another(limit):
    for demand in (1.0, 1.1):
        row = moving_burst(limit, demand, 180)
        assert row.met, row


def test_near_the_limit_below_it_and_without_one():
    for row in near_the_limit():
        assert row.met, row


def test_calls_are_few():
    assert calls_per_decisions(10) <= 30


def test_a_fleet_with_uneven_demand():
    for demand in (0.8, 2.0):
        row = large_fleet(100, 3000, demand, 70)
        assert row.met, row
        busiest = float(row.more.split("busiest ")[1].split(" of")[0])
        assert busiest <= 1.02, row


def test_an_idle_client_calls_once_in_a_third_of_its_lease():
    fleet = Fleet(Window(20, per=1, remote=False), [even(20)]).run(2)
    fleet.clients[0].traffic = iter(())
    before = fleet.clients[0].calls
    fleet.run(32)
    assert fleet.clients[0].calls - before <= 31


def test_clocks_at_the_edge_of_their_drift():
    limit = Window(20, per=1, remote=False)
    for here, there in ((1, -1), (-1, 1), (1, 1)):
        fleet = Fleet(
            limit,
            [poisson(rate, Random(i)) for i, rate in enumerate((15, 9))],
            Terms(drift_ppm=50_000, ledger_drift_ppm=50_000),
            ledger_clock=Skewed(1, 0, ((0, BILLION + there * 50_000_000),)),
            clocks=[Skewed(1, 0, ((0, BILLION + here * 50_000_000),))] * 2,
        ).run(30)
        assert above(limit, sorted(fleet.times)) == 0
        assert len(fleet.times) > 400


def test_an_aligned_window_is_shared_by_its_counts():
    limit = FixedWindow(100, per="10s")
    fleet = Fleet(limit, split(20, (3, 1)), network=Network(20_000_000)).run(100)
    assert above(limit, fleet.times) == 0
    assert len(fleet.times) >= 950


class Slots(Fleet):
    """Calls that occupy a slot for a while."""

    def __init__(self, *given, **named):
        self.spans = []
        super().__init__(*given, **named)

    def spend(self, client, now):
        mark = client.holder.tokens.ledger.take(now, 1)
        end = self.t + 300_000_000
        self.spans.append((self.t, end))
        self.push(end, self.free, client, client.holder.tokens.ledger, mark)

    def free(self, client, ledger, mark):
        ledger.complete(client.clock.reading(self.t), 1, mark)


def test_slots_are_shared_by_clients():
    limit = Concurrency(10)
    fleet = Slots(limit, split(30, (2, 1)), network=Network(20_000_000)).run(20)
    assert above_slots(limit, fleet.spans) == 0
    assert len(fleet.spans) >= 400
    rough = Slots(limit, split(60, (2, 1)), network=RoughNetwork(Random(1), 20_000_000, 2 * BILLION)).run(20)
    assert above_slots(limit, rough.spans) == 0
    assert len(rough.spans) >= 200


@pytest.mark.parametrize("first", [0, 5_000])
def test_worlds_in_which_everything_goes_wrong(first):
    for seed in range(first, first + 25):
        outcome = run_world(draw(seed))
        assert outcome.above == 0, outcome
        assert not outcome.jammed, outcome


class Checked(LeaseLedger):
    """Keeps sums as it goes along; here they are added up anew after every call."""

    def sync(self, now, ask):
        answer = super().sync(now, ask)
        leases = self.leases.values()
        assert self.held == sum(lease.held for lease in leases)
        assert self.short == sum(lease.short() for lease in leases)
        assert self.recalled == sum(lease.recall for lease in leases)
        assert all(lease.held >= 0 and lease.end > now for lease in leases)
        ends = [lease.end for lease in leases]
        assert ends == sorted(ends)
        return answer


def test_the_sums_of_a_ledger_are_right_after_every_call():
    for seed in range(100, 115):
        run_world(draw(seed), lender=Checked)


@every_mutant
def test_a_broken_rule_is_found(mutant):
    found = hunt(mutant, WORLDS)
    assert found is not None, f"{mutant.name}: not found in {WORLDS} worlds"
    assert run_world(found[1].world).above == 0


def test_there_are_at_least_six_mutants():
    assert len({mutant.name for mutant in MUTANTS}) >= 6


def test_the_audit_sees_one_event_too_many():
    fleet = Fleet(Window(20, per=1, remote=False), [even(30)]).run(10)
    times = sorted(fleet.times)
    assert above(fleet.limit, times) == 0
    assert above(fleet.limit, sorted([*times, times[30]])) > 0


def test_a_client_that_ignores_its_share_is_above_the_limit():
    class Doubles(Holder):
        def answered(self, now, answer):
            return super().answered(now, answer._replace(tokens=answer.tokens * 2))

    fleet = Fleet(Window(20, per=1, remote=False), [even(100)], holder=Doubles).run(5)
    assert above(fleet.limit, fleet.times) > 0


def test_the_command_prints_what_it_found():
    command = [sys.executable, "-m", "headway.lab.leases", "worlds", "--count", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "3 worlds, 0 of them above the limit or jammed" in done.stdout


class WithSingles(Fleet):
    """A fleet whose ledger is also asked for single permits, by clients without a lease."""

    def __init__(self, limit, traffics, singles):
        self.single_times = []
        super().__init__(limit, traffics)
        self.singles = singles
        self.push(next(singles), self.single)

    def single(self):
        self.push(next(self.singles), self.single)
        self.ledger_now = max(self.ledger_now, self.t)
        if self.ledger.direct(self.ledger_now, 1) == 0:
            self.ledger.tokens.ledger.take(self.ledger_now, 1)
            self.single_times.append(self.t)


@pytest.mark.parametrize("limit", [Window(20, per=1, remote=False), Bucket("20/s", burst=20)], ids=str)
def test_clients_with_and_without_a_lease_share_one_ledger(limit):
    fleet = WithSingles(limit, split(40, (1, 1)), even(8, start=5 * BILLION)).run(35)
    assert above(limit, sorted(fleet.times + fleet.single_times)) == 0
    # A fair third of the limit goes to single permits, and the leases use the rest.
    assert len(fleet.single_times) >= 0.7 * 20 / 3 * 30
    late = [at for at in fleet.times + fleet.single_times if at >= 10 * BILLION]
    assert len(late) >= 0.9 * 20 * 25
