"""Concurrency: never more than n out, and every end hands back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.strategies import COMMANDS, CONCURRENCIES, traced
from core.traces import Player, rule_of
from headway.core.ledger import FOREVER, Ledger
from headway.core.limits import Concurrency

ENDS = ["complete", "abandon", "cancel", "settle"]


@settings(traced)
@given(CONCURRENCIES, COMMANDS)
def test_never_more_out_than_promised_and_never_less_offered(case, commands) -> None:
    limit, _ = case

    def check(player: Player) -> None:
        out = sum(grant.cost for grant in player.open_grants())
        assert out <= limit.count
        assert player.ledger.in_flight(player.now) == out
        assert player.ledger.remaining(player.now) == limit.count - out

    Player(rule_of(limit).open()).play(commands, check)


@settings(traced)
@given(CONCURRENCIES, COMMANDS, CONCURRENCIES, COMMANDS)
def test_a_new_limit_counts_permits_that_are_out(case, before, other, after) -> None:
    player = Player(rule_of(case[0]).open()).play(before)
    player.ledger.reconfigure(rule_of(other[0]), player.now)
    known = len(player.grants)

    def check(player: Player) -> None:
        out = sum(grant.cost for grant in player.open_grants())
        assert player.ledger.in_flight(player.now) == out
        assert len(player.grants) == known or out <= max(other[0].count, out - player.grants[-1].cost)

    player.play(after, check)


@pytest.mark.parametrize("end", ENDS)
def test_the_worked_example(end) -> None:
    player = Player(rule_of(Concurrency(2)).open())
    player.play([("take", 0, 0), ("take", 0, 0)])
    ledger = player.ledger
    assert (ledger.wait(0, 1), ledger.exact(0, 1), ledger.latest_wait(0, 1)) == (1, False, FOREVER)
    player.play([(end, 0, 0)])
    assert (ledger.wait(0, 1), ledger.in_flight(0), ledger.reset_after(0)) == (0, 1, FOREVER)


LEASE = 10
Held = dict[int, tuple[int, int, int]]  # permit: cost, mark, when it was last heard of
LEASED_STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "take", "renew", *ENDS]), st.integers(0, 7), st.integers(0, 30)),
    max_size=50,
)


def end_of(ledger: Ledger, how: str, now: int, cost: int, mark: int) -> None:
    match how:
        case "complete":
            ledger.complete(now, cost, mark)
        case "abandon":
            ledger.abandon(now, cost, mark)
        case "cancel":
            ledger.cancel(now, cost, mark, 0)
        case _:
            ledger.settle(now, cost, mark, 0, cost + 1)


def check_leases(ledger: Ledger, now: int, count: int, alive: Held) -> None:
    out = sum(cost for cost, _, _ in alive.values())
    assert len({mark for _, mark, _ in alive.values()}) == len(alive), "permits are told apart by their marks"
    assert all(mark < now + len(alive) for _, mark, _ in alive.values())
    assert out <= count
    assert (ledger.in_flight(now), ledger.remaining(now)) == (out, count - out)
    last = max((heard for _, _, heard in alive.values()), default=now - LEASE)
    assert ledger.reset_after(now) == last + LEASE - now
    assert ledger.idle(now) == (not alive)
    for cost in range(1, count + 1):
        fits = cost <= count - out
        assert (ledger.wait(now, cost), ledger.exact(now, cost)) == (0 if fits else 1, fits)
        sure = ledger.latest_wait(now, cost)
        assert ledger.copy().wait(now + sure, cost) == 0
        assert sure == 0 or ledger.copy().wait(now + sure - 1, cost) == 1
    assert ledger.wait(now, count + 1) == ledger.latest_wait(now, count + 1) == FOREVER


@settings(traced, max_examples=400)
@given(st.integers(1, 5), LEASED_STEPS)
def test_what_expired_is_given_back_once(count, steps) -> None:
    """Against a record of when each permit was renewed last. Permits are ended and renewed also after they expired."""
    ledger: Ledger = rule_of(Concurrency(count), 1, LEASE).open()
    now = 1_000
    known: Held = {}
    ended: set[int] = set()
    for number, (verb, passed, x) in enumerate(steps):
        now += passed
        alive = {i: held for i, held in known.items() if i not in ended and now < held[2] + LEASE}
        if verb == "take":
            cost = 1 + x % count
            if ledger.wait(now, cost) == 0:
                mark = ledger.take(now, cost)
                known[number] = alive[number] = (cost, mark, mark)
        elif open_ones := [i for i in known if i not in ended]:
            i = open_ones[x % len(open_ones)]
            cost, mark, _ = known[i]
            if verb == "renew":
                mark = ledger.renew(now, cost, mark)
                assert (mark >= 0) == (i in alive)
                if mark >= 0:
                    known[i] = alive[i] = (cost, mark, mark)
            else:
                end_of(ledger, verb, now, cost, mark)
                ended.add(i)
                alive.pop(i, None)
        check_leases(ledger, now, count, alive)


@pytest.mark.parametrize("end", ENDS)
def test_an_end_after_the_lease_mints_nothing(end) -> None:
    ledger = rule_of(Concurrency(1), 1, LEASE).open()
    mark = ledger.take(100, 1)
    assert ledger.wait(109, 1) == 1
    assert ledger.wait(110, 1) == 0
    ledger.take(110, 1)
    end_of(ledger, end, 111, 1, mark)
    assert ledger.renew(111, 1, mark) == -1
    assert (ledger.in_flight(111), ledger.wait(111, 1)) == (1, 1)


def test_the_worked_example_of_leases() -> None:
    ledger = rule_of(Concurrency(2), 1, LEASE).open()
    first = ledger.take(0, 1)
    ledger.take(1, 1)
    assert ledger.renew(6, 1, first) == 6
    assert (ledger.wait(7, 1), ledger.exact(7, 1), ledger.latest_wait(7, 1), ledger.latest_wait(7, 2)) == (
        1,
        False,
        4,
        9,
    )


def test_a_lease_is_never_shortened_under_its_holder() -> None:
    short, long = rule_of(Concurrency(1), 1, 5), rule_of(Concurrency(1), 1, 50)
    ledger = long.open()
    ledger.take(0, 1)
    ledger.reconfigure(short, 0)
    assert ledger.latest_wait(0, 1) == 50
    assert ledger.wait(50, 1) == 0
    mark = ledger.take(50, 1)
    assert ledger.latest_wait(50, 1) == 5
    ledger.reconfigure(long, 50)
    assert ledger.latest_wait(50, 1) == 50
    ledger.complete(51, 1, mark)
    assert ledger.idle(51)


def test_what_has_no_lease_gets_one_that_begins_now_and_is_not_minted_twice() -> None:
    leased, plain = rule_of(Concurrency(2), 1, LEASE), rule_of(Concurrency(2))
    ledger = plain.open()
    mark = ledger.take(0, 1)
    assert ledger.renew(5, 1, mark) == mark
    ledger.reconfigure(leased, 20)
    assert (ledger.in_flight(29), ledger.latest_wait(29, 2), ledger.in_flight(30)) == (1, 1, 0)
    mark = ledger.take(30, 1)
    ledger.take(41, 2)
    ledger.reconfigure(plain, 41)
    ledger.complete(99, 1, mark)  # it had expired at 40
    assert (ledger.in_flight(99), ledger.latest_wait(99, 1), ledger.reset_after(99)) == (2, FOREVER, FOREVER)
