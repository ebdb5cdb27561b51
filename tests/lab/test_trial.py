# mypy: disable-error-code="union-attr, arg-type, var-annotated"
"""A limit and a fleet of one's own: the figures are those of the tables, and both ways get the same requests."""

from __future__ import annotations

import re
from random import Random
from xml.etree import ElementTree as ET

import pytest

from headway.core.limits import Bucket, Concurrency, FixedWindow, Window
from headway.lab.clocks import BILLION
from headway.lab.leases.audit import above, above_slots, most
from headway.lab.leases.picture import BINS, COLORS, Groups, draw, levels, peak, tokens
from headway.lab.leases.tables import CLIENTS, LIMITS, accuracy
from headway.lab.leases.trial import Plan
from headway.lab.prefetch.accuracy import Case, run

SECOND = BILLION
WINDOW = Window(20, per=1, remote=False)
EVERY_LIMIT = [WINDOW, Bucket("20/s", burst=20), FixedWindow(20, per=1), Concurrency(6)]
every_limit = pytest.mark.parametrize("limit", EVERY_LIMIT, ids=str)


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("name", ["Window 20/s", "Bucket 20/s burst 20"])
def test_leases_have_the_figures_of_the_table(name, clients):
    plan = Plan(LIMITS[name], CLIENTS[clients])
    for demand in (0.5, 1.1, 10.0):
        row, track = accuracy(name, clients, demand), plan.leases(20 * demand)
        assert track.passed(plan) == row.passed
        assert track.calls_per_second(plan) == pytest.approx(row.calls * len(plan.weights))
        assert track.most(plan) <= plan.bound


def test_the_original_passes_what_it_passes_in_its_own_tests():
    """Requests every 50 ms, and every 5 ms: the same in both."""
    plan = Plan(WINDOW, (1,))
    for demand in (20, 200):
        published = run(Case("fixed", 20, SECOND, 1, (demand,)), "original")
        found = plan.original(demand)
        assert [at for at, _ in found.spent if at < 10 * SECOND] == published.times
        assert found.counted_passed == len(published.times)
        assert len([at for at, _ in found.calls if at < 10 * SECOND]) == published.calls


@every_limit
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_leases_are_never_above_the_limit_and_get_the_same_requests(limit, seed):
    plan = Plan(limit, (3, 1, 1), seed=seed)
    for demand in (0.9, 1.1, 10):
        rate = plan.rate * demand
        leases, original, asking = plan.leases(rate), plan.original(rate), plan.asking(rate)
        times = [at for at, _ in leases.spent]
        if isinstance(limit, Concurrency):
            assert original is None
            assert above_slots(limit, [(at, at + plan.hold_ns) for at in times]) == 0
        else:
            assert above(limit, times) == 0
            assert sorted(original.asked) == sorted(leases.asked)
        assert leases.most(plan) <= plan.bound
        assert sorted(asking.asked) == sorted(leases.asked)
        assert len(asking.calls) == len(asking.asked)


@every_limit
def test_without_leases_a_limit_admits_all_it_can(limit):
    plan = Plan(limit, (1, 1))
    assert plan.asking(plan.rate * 0.9).passed(plan) == 1
    assert plan.asking(plan.rate * 10).most(plan) == plan.bound
    assert plan.asking(plan.rate * 10).passed(plan) >= 0.99


def test_one_way_of_the_original_is_above_the_limit():
    plan = Plan(WINDOW, (3, 1))
    assert plan.original(200).most(plan) > 2 * plan.bound
    assert plan.leases(200).most(plan) == plan.bound


def test_a_limit_of_nothing_passes_nothing():
    plan = Plan(Window(0, per=1, remote=False), (1, 1))
    assert plan.allowed == plan.rate == 0
    assert plan.leases(100).spent == []
    assert plan.original(100).counted_passed > 0


def test_windows_of_the_calendar_are_counted_as_they_come():
    day = FixedWindow(1000, per="day", tz="Europe/Berlin")
    assert Plan(FixedWindow(100, per="10s"), (1,)).allowed == 1000
    assert Plan(day, (1,), windows=2).allowed == 3000, "the run begins at 1 o'clock there"


def test_the_most_is_above_exactly_where_the_audit_finds_something():
    rng = Random(7)
    for _ in range(300):
        n = rng.randrange(1, 5)
        times = sorted(rng.randrange(4 * SECOND) for _ in range(rng.randrange(12)))
        for limit in (Window(n, per=1), Bucket((n, 1), burst=n), FixedWindow(n, per=1)):
            assert (most(limit, times) > limit.capacity) == (above(limit, times) > 0), (limit, times)
    third = Bucket("3/s", burst=1)
    for times in ([0, 333_333_332], [0, 333_333_333]):
        assert (most(third, times) > 1) == (above(third, times) > 0), times


def test_progress_adds_up_to_the_requests():
    plan = Plan(WINDOW, (1, 1))
    for way in (plan.leases, plan.original, plan.asking):
        done = []
        requests = len(way(2000, done.append).asked)
        assert sum(done) == pytest.approx(requests, abs=1000)
        assert len(done) >= 10


# -- the picture


def drawn(plan, rate):
    picture = draw(plan, rate, plan.leases(rate), plan.original(rate))
    return ET.fromstring(picture), picture


def series(root):
    return {group.get("id"): group for group in root.iter("{http://www.w3.org/2000/svg}g")}


@every_limit
def test_a_picture_has_its_series_and_nothing_beyond_its_edges(limit):
    plan = Plan(limit, (3, 1))
    root, picture = drawn(plan, plan.rate * 10)
    expected = {"demand", "leases", "original", "tokens", "calls"}
    assert set(series(root)) == expected - ({"original"} if isinstance(limit, Concurrency) else set())
    width, height = map(float, root.get("viewBox").split()[2:])
    assert max(float(x) for x in re.findall(r"(?:[MH]| x=\")([\d.]+)", picture)) <= width
    assert max(float(y) for y in re.findall(r"(?:M[\d.]+ |V| y=\")([\d.]+)", picture)) <= height
    assert min(map(float, re.findall(r"V(-?[\d.]+)", picture))) > 0


def test_only_the_original_is_drawn_red():
    found = series(drawn(Plan(WINDOW, (3, 1)), 200)[0])
    red = {name for name, group in found.items() if any(part.get("class") == "above" for part in group)}
    assert red == {"original"}


def test_what_is_drawn_is_the_fullest_moment_of_each_stretch():
    plan = Plan(WINDOW, (3, 1))
    groups = Groups(plan.weights)
    for track in (plan.leases(22), plan.original(22), plan.original(200)):
        found = levels(plan, track.spent, groups)
        assert len(found) == BINS
        assert peak(found) == track.most(plan)
        assert min(map(sum, found[BINS // 2 :])) > 0, "demand is steady: there are no gaps"


def test_tokens_with_clients_are_never_more_than_there_are():
    plan = Plan(WINDOW, (3, 1))
    held = tokens(plan, plan.leases(22), Groups(plan.weights))
    assert peak(held) == 20
    assert held[-1] == (15, 5)


def test_a_large_fleet_has_as_many_colors_as_there_are():
    groups = Groups((1, 5, *(1,) * 20))
    assert groups.count == len(groups.names) == len(COLORS)
    assert groups.of[1] == 0
    assert groups.names[0] == "client 2 (19.2 %)"
    assert groups.names[-1] == "15 others (57.7 %)"
    plan = Plan(WINDOW, (1,) * 22, windows=2)
    assert set(series(drawn(plan, 22)[0])) == {"demand", "leases", "original", "tokens", "calls"}
