"""What every kind of ledger promises: one suite over all of them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from core.strategies import COMMANDS, KINDS, traced
from core.traces import Player, look, rule_of
from headway.core.ledger import FOREVER, Ledger
from headway.core.limits import FixedWindow, Window
from headway.core.notation import parse_limit
from headway.core.remote import Remote

every_kind = pytest.mark.parametrize("kind", KINDS)


def same_future(one: Player, other: Player, commands) -> None:
    """Both are asked the same from now on and must give the same answers."""
    assert look(one) == look(other)
    one.play(commands)
    other.play(commands)
    assert one.log == other.log


def best_case(player: Player) -> Ledger:
    """The ledger, had every permit that may still be ended been completed this instant."""
    ledger: Ledger = player.ledger.copy()
    for grant in player.grants:
        if grant.end == "":
            ledger.complete(player.now, grant.cost, grant.mark)
    return ledger


def check_waits(player: Player) -> None:
    ledger, now = player.ledger, player.now
    for cost in range(1, ledger.get_rule().capacity + 1, max(1, ledger.get_rule().capacity // 5)):
        wait, sure = ledger.wait(now, cost), ledger.latest_wait(now, cost)
        assert 0 <= wait <= sure
        if ledger.exact(now, cost):
            assert wait == sure
        else:
            assert best_case(player).wait(now, cost) >= (wait if wait > 1 else 0)
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
    Player(rule_of(limit).open(), unit).play(data.draw(COMMANDS), check_waits)


def check_remaining(player: Player) -> None:
    left = player.ledger.remaining(player.now)
    assert left == 0 or player.ledger.wait(player.now, left) == 0
    assert player.ledger.wait(player.now, left + 1) > 0


@every_kind
@settings(traced)
@given(st.data())
def test_remaining_is_the_largest_cost_granted_now(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    Player(rule_of(limit).open(), unit).play(data.draw(COMMANDS), check_remaining)


@every_kind
@settings(traced)
@given(st.data())
def test_a_look_changes_nothing(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    commands = data.draw(COMMANDS)
    blind = Player(rule_of(limit).open(), unit).play(commands)
    curious = Player(rule_of(limit).open(), unit).play(commands, look)
    assert curious.log == blind.log
    assert look(curious) == look(blind)  # time acts on a ledger when it is asked
    assert curious.ledger.state() == blind.ledger.state()


@every_kind
@settings(traced)
@given(st.data())
def test_copies_are_equal_and_apart(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    player = Player(rule_of(limit).open(), unit).play(data.draw(COMMANDS))
    state = player.ledger.state()
    twin = player.fork(player.ledger.copy())
    assert twin.ledger.state() == state
    commands = data.draw(COMMANDS)
    twin.play(commands)
    assert player.ledger.state() == state
    player.log.clear()
    assert player.play(commands).log == twin.log


@every_kind
@settings(traced)
@given(st.data())
def test_cancel_restores_when_nothing_came_after(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    assume(kind != "bucket" or limit.count <= limit.per_ns)  # closer permits than a nanosecond share a mark
    player = Player(rule_of(limit).open(), unit).play(data.draw(COMMANDS))
    ledger, cost = player.ledger, player.cost(data.draw(st.integers(0, 99_999)))
    player.now += ledger.latest_wait(player.now, cost) % FOREVER
    if ledger.wait(player.now, cost) > 0:
        return  # the last permit of a Concurrency is out
    before = player.fork(ledger.copy())
    mark = ledger.take(player.now, cost)
    # A permit that is out for longer than its transit counts as completed.
    longest = ledger.get_rule().transit - 1 if getattr(limit, "remote", None) else 40
    later = data.draw(st.integers(0, longest))
    player.now += later
    before.now += later
    ledger.cancel(player.now, cost, mark, ledger.tally)
    same_future(player.fork(ledger), before, data.draw(COMMANDS))


def behaves_as_fresh(player: Player, commands) -> None:
    fresh = Player(player.ledger.get_rule().open(), player.unit, player.now)
    used = Player(player.ledger.copy(), player.unit, player.now)
    same_future(used, fresh, commands)


def check_idle(player: Player) -> None:
    ledger, now = player.ledger, player.now
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
    player = Player(rule_of(limit).open(), unit).play(data.draw(COMMANDS), check_idle)
    player.now += player.ledger.reset_after(player.now) % FOREVER
    if player.ledger.idle(player.now):
        player.now += kind == "bucket"  # it keeps a fraction until then, so as not to drift
        behaves_as_fresh(player, data.draw(COMMANDS))


@every_kind
@settings(traced)
@given(st.data())
def test_exhaust_leaves_nothing_and_forgives_nothing(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    player = Player(rule_of(limit).open(), unit).play(data.draw(COMMANDS))
    ledger, now = player.ledger, player.now
    before = ledger.wait(now, 1)
    ledger.exhaust(now)
    if kind == "concurrency":  # a process that starts anew has no permits out
        assert ledger.wait(now, 1) == before
    else:
        assert ledger.remaining(now) == 0
        assert ledger.wait(now, 1) >= max(1, before)


@every_kind
@settings(traced)
@given(st.data())
def test_adopting_the_same_limit_changes_nothing(kind, data) -> None:
    limit, unit = data.draw(KINDS[kind])
    player = Player(rule_of(limit).open(), unit).play(data.draw(COMMANDS))
    before = player.fork(player.ledger.copy())
    player.ledger.reconfigure(rule_of(limit), player.now)
    same_future(player.fork(player.ledger), before, data.draw(COMMANDS))


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
    player = Player(rule_of(limit).open(), unit).play(data.draw(COMMANDS))
    over = player.ledger.get_rule().capacity + 1
    assert player.ledger.wait(player.now, over) == player.ledger.latest_wait(player.now, over) == FOREVER
