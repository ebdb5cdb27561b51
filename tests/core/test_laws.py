"""What every kind of ledger promises: one suite over all of them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from core.strategies import COMMANDS, KINDS, traced
from core.traces import LocalLimiter, look, rule_of
from headway.core.ledger import FOREVER, Ledger
from headway.core.limits import FixedWindow, Window
from headway.core.notation import parse_limit
from headway.core.remote import Remote

every_kind = pytest.mark.parametrize("kind", KINDS)


def same_future(one: LocalLimiter, other: LocalLimiter, commands) -> None:
    """Both are asked the same from now on and must give the same answers."""
    assert look(one) == look(other)
    one.play(commands)
    other.play(commands)
    assert one.log == other.log


def best_case(desk: LocalLimiter) -> Ledger:
    """The ledger, had every permit that may still be ended been completed this instant."""
    ledger: Ledger = desk.ledger.copy()
    for grant in desk.grants:
        if grant.end == "":
            ledger.complete(desk.now, grant.cost, grant.mark)
    return ledger


def check_waits(desk: LocalLimiter) -> None:
    ledger, now = desk.ledger, desk.now
    for cost in range(1, ledger.get_rule().capacity + 1, max(1, ledger.get_rule().capacity // 5)):
        wait, sure = ledger.wait(now, cost), ledger.latest_wait(now, cost)
        assert 0 <= wait <= sure
        if ledger.exact(now, cost):
            assert wait == sure
        else:
            assert best_case(desk).wait(now, cost) >= (wait if wait > 1 else 0)
        if wait:
            assert ledger.copy().wait(now + wait - 1, cost) > 0
        if 0 < sure < FOREVER:
            assert ledger.copy().wait(now + sure - 1, cost) > 0
        if sure < FOREVER:
            assert ledger.copy().wait(now + sure, cost) == 0


@every_kind
@settings(traced)
@given(st.data())
def test_promised_waits_are_exact(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    LocalLimiter(rule_of(limit).open(), unit).play(data.draw(COMMANDS), check_waits)


def check_remaining(desk: LocalLimiter) -> None:
    left = desk.ledger.remaining(desk.now)
    assert left == 0 or desk.ledger.wait(desk.now, left) == 0
    assert desk.ledger.wait(desk.now, left + 1) > 0


@every_kind
@settings(traced)
@given(st.data())
def test_remaining_is_the_largest_cost_granted_now(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    LocalLimiter(rule_of(limit).open(), unit).play(data.draw(COMMANDS), check_remaining)


@every_kind
@settings(traced)
@given(st.data())
def test_a_look_changes_nothing(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    commands = data.draw(COMMANDS)
    blind = LocalLimiter(rule_of(limit).open(), unit).play(commands)
    curious = LocalLimiter(rule_of(limit).open(), unit).play(commands, look)
    assert curious.log == blind.log
    assert look(curious) == look(blind)  # time acts on a ledger when it is asked
    assert curious.ledger.state() == blind.ledger.state()


@every_kind
@settings(traced)
@given(st.data())
def test_copies_are_equal_and_apart(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    desk = LocalLimiter(rule_of(limit).open(), unit).play(data.draw(COMMANDS))
    state = desk.ledger.state()
    twin = desk.fork(desk.ledger.copy())
    assert twin.ledger.state() == state
    commands = data.draw(COMMANDS)
    twin.play(commands)
    assert desk.ledger.state() == state
    desk.log.clear()
    assert desk.play(commands).log == twin.log


@every_kind
@settings(traced)
@given(st.data())
def test_cancel_restores_when_nothing_came_after(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    assume(kind != "bucket" or limit.count <= limit.per_ns)  # closer permits than a nanosecond share a mark
    desk = LocalLimiter(rule_of(limit).open(), unit).play(data.draw(COMMANDS))
    ledger, cost = desk.ledger, desk.cost(data.draw(st.integers(0, 99_999)))
    desk.now += ledger.latest_wait(desk.now, cost) % FOREVER
    if ledger.wait(desk.now, cost) > 0:
        return  # the last permit of a Concurrency is out
    before = desk.fork(ledger.copy())
    mark = ledger.take(desk.now, cost)
    # A permit that is out for longer than its transit counts as completed.
    longest = ledger.get_rule().transit - 1 if getattr(limit, "remote", None) else 40
    later = data.draw(st.integers(0, longest))
    desk.now += later
    before.now += later
    ledger.cancel(desk.now, cost, mark, ledger.tally)
    same_future(desk.fork(ledger), before, data.draw(COMMANDS))


def behaves_as_fresh(desk: LocalLimiter, commands) -> None:
    fresh = LocalLimiter(desk.ledger.get_rule().open(), desk.unit, desk.now)
    used = LocalLimiter(desk.ledger.copy(), desk.unit, desk.now)
    same_future(used, fresh, commands)


def check_idle(desk: LocalLimiter) -> None:
    ledger, now = desk.ledger, desk.now
    capacity = ledger.get_rule().capacity
    assert ledger.idle(now) == (ledger.wait(now, capacity) == 0)
    after = ledger.reset_after(now)
    if ledger.idle(now):
        assert after == 0 or isinstance(ledger.get_rule().limit, FixedWindow)  # it tells when its window ends
    elif after < FOREVER:
        assert not ledger.copy().idle(now + after - 1)
        assert ledger.copy().idle(now + after)


@every_kind
@settings(traced)
@given(st.data())
def test_reset_after_is_when_the_ledger_is_as_new(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    desk = LocalLimiter(rule_of(limit).open(), unit).play(data.draw(COMMANDS), check_idle)
    desk.now += desk.ledger.reset_after(desk.now) % FOREVER
    if desk.ledger.idle(desk.now):
        desk.now += kind == "bucket"  # it keeps a fraction until then, so as not to drift
        behaves_as_fresh(desk, data.draw(COMMANDS))


@every_kind
@settings(traced)
@given(st.data())
def test_exhaust_leaves_nothing_and_forgives_nothing(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    desk = LocalLimiter(rule_of(limit).open(), unit).play(data.draw(COMMANDS))
    ledger, now = desk.ledger, desk.now
    before = ledger.wait(now, 1)
    ledger.exhaust(now)
    if kind == "concurrency":  # who starts anew has nothing out
        assert ledger.wait(now, 1) == before
    else:
        assert ledger.remaining(now) == 0
        assert ledger.wait(now, 1) >= max(1, before)


@every_kind
@settings(traced)
@given(st.data())
def test_adopting_the_same_limit_changes_nothing(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    desk = LocalLimiter(rule_of(limit).open(), unit).play(data.draw(COMMANDS))
    before = desk.fork(desk.ledger.copy())
    desk.ledger.reconfigure(rule_of(limit), desk.now)
    same_future(desk.fork(desk.ledger), before, data.draw(COMMANDS))


@pytest.mark.parametrize("text", ["0/s", "0/s burst 5", "0/day aligned", "0 concurrent"])
def test_a_limit_of_zero_admits_nothing(text) -> None:
    ledger = rule_of(parse_limit(text)).open()
    assert ledger.wait(10, 1) == ledger.latest_wait(10, 1) == FOREVER
    assert ledger.remaining(10) == 0
    remote = rule_of(Window(0, per=1, remote=Remote())).open()
    assert remote.wait(10, 1) == remote.latest_wait(10, 1) == FOREVER


@every_kind
@settings(traced)
@given(st.data())
def test_more_than_the_limit_is_never_granted(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    desk = LocalLimiter(rule_of(limit).open(), unit).play(data.draw(COMMANDS))
    over = desk.ledger.get_rule().capacity + 1
    assert desk.ledger.wait(desk.now, over) == desk.ledger.latest_wait(desk.now, over) == FOREVER
