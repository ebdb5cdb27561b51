"""Tokens move between ledgers, and nothing is minted: neither by moving nor by what is forfeited."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.ledger import FOREVER
from headway.core.lendable import tokens_to_borrow, tokens_to_lend
from headway.core.limits import AllOf, Bucket, Concurrency, FixedWindow, Spacing, Window
from headway.core.tokens import at_least, at_most, total
from headway.core.window import WindowRule
from headway.errors import InvalidLimit
from headway.lab.leases.audit import above

SECOND = 10**9
LIMITS = [
    Window(5, per=1, remote=False),
    Window(1, per=1, remote=False),
    Window(1500, per=1, remote=False),
    Bucket("5/s", burst=5),
    Bucket("3/s", burst=7),
    Bucket("7/s", burst=1),
    Bucket("700/s", burst=30),
]
every_limit = pytest.mark.parametrize("limit", LIMITS, ids=str)
moves = st.lists(
    st.tuples(
        st.sampled_from(["spend", "spend", "move", "pass", "forfeit"]), st.integers(0, 2), st.integers(0, 60)
    ),
    max_size=120,
)


def places(limit):
    """The ledger, and two clients whose clocks agree with it."""
    return [
        tokens_to_lend(limit, 0, 0, SECOND),
        tokens_to_borrow(limit, 0, 0, 0, SECOND),
        tokens_to_borrow(limit, 0, 0, 0, SECOND),
    ]


@every_limit
@given(moves=moves)
def test_a_limit_holds_over_all_places_however_tokens_move(limit, moves):
    all_places = places(limit)
    now, spent = 1000, []
    for verb, where, x in moves:
        here = all_places[where]
        if verb == "pass":
            now += x * SECOND // 40
        elif verb == "move":
            # On the way for a while: it only gets later.
            batch = here.withdraw(now, 1 + x % limit.capacity)
            now += x
            all_places[(where + 1 + x % 2) % 3].deposit(now, batch)
        elif verb == "forfeit" and where:
            lost = total(here.withdraw(now, limit.capacity))
            if lost:
                all_places[0].forfeit(now, lost, now)
        else:
            for _ in range(x):
                if here.ledger.wait(now, 1) == 0:
                    here.ledger.take(now, 1)
                    spent.append(now)
        assert sum(place.count(now) for place in all_places) == limit.capacity
    assert above(limit, spent) == 0


@every_limit
@given(x=st.integers(1, 60), k=st.integers(1, 1500))
def test_tokens_that_were_there_and_back_are_what_they_were(limit, x, k):
    whole, lent = places(limit)[:2]
    for _ in range(x):
        if whole.ledger.wait(1000, 1) == 0:
            whole.ledger.take(1000, 1)
    lent.deposit(1000, whole.withdraw(1000, k))
    whole.deposit(1000, lent.withdraw(1000, k))
    fresh = places(limit)[0]
    for _ in range(x):
        if fresh.ledger.wait(1000, 1) == 0:
            fresh.ledger.take(1000, 1)
    # Rounding adds a tick in each direction, or a step of the grid of a large window.
    late = SECOND // 1000 if limit.capacity > 1024 else 2
    for cost in range(1, limit.capacity + 1, max(1, limit.capacity // 7)):
        assert (
            fresh.ledger.wait(1000, cost)
            <= whole.ledger.wait(1000, cost)
            <= fresh.ledger.wait(1000, cost) + late
        )


@pytest.mark.parametrize("limit", [Window(5, per=1, remote=False), Bucket("3/s", burst=7)], ids=str)
def test_a_ledger_of_longer_ticks_lends_the_same(limit):
    """A script counts microseconds."""
    fine, coarse = tokens_to_lend(limit, 0, 0, SECOND), tokens_to_lend(limit, 0, 0, SECOND // 1000, 1000)
    for tokens, second in ((fine, SECOND), (coarse, SECOND // 1000)):
        tokens.ledger.take(second, 3)
        tokens.deposit(second, tokens.withdraw(second, 4))
    for cost in range(1, limit.capacity + 1):
        late = coarse.ledger.wait(SECOND // 1000, cost) * 1000 - fine.ledger.wait(SECOND, cost)
        assert 0 <= late <= 2000


def test_idle_tokens_go_first_then_an_even_sample():
    window = tokens_to_lend(Window(10, per=10, remote=False), 0, 0, SECOND)
    for second in range(8):
        window.ledger.take(second * SECOND, 1)
    now = 8 * SECOND
    assert window.withdraw(now, 1) == ((1, 0),)
    batch = window.withdraw(now, 5)
    assert [count for count, _ in batch] == [1, 1, 1, 1, 1]
    assert [after // SECOND for _, after in batch] == [0, 3, 5, 7, 9]


def test_what_is_owed_is_not_lent():
    window = tokens_to_lend(Window(4, per=1, remote=False), 0, 0, SECOND)
    mark = window.ledger.take(0, 2)
    window.ledger.settle(0, 2, mark, 0, 6)
    assert window.count(0) == 4
    assert total(window.withdraw(0, 10)) == 4
    assert window.count(0) == 0


def test_an_interrupted_ledger_does_not_take_lent_tokens_for_missing_ones():
    window = tokens_to_lend(Window(10, per=1, remote=False), 0, 0, SECOND)
    window.withdraw(0, 7)
    window.ledger.mend(0)
    assert window.count(0) == 3
    twin = window.ledger.get_rule().open()
    twin.restore(window.ledger.state(), 0)
    twin.mend(0)
    assert twin.remaining(0) == 3


def test_a_remote_counts_tokens_of_a_vanished_client_after_their_transit():
    window = tokens_to_lend(Window(2, per=1, remote=True), 1, 250, SECOND)
    window.withdraw(0, 2)
    window.forfeit(5 * SECOND, 2, 4 * SECOND)
    wait = window.ledger.wait(5 * SECOND, 1)
    rule = window.ledger.get_rule()
    assert isinstance(rule, WindowRule)
    assert wait == 4 * SECOND + rule.transit + rule.gap - 5 * SECOND
    assert rule.transit >= 10 * SECOND


def test_a_bucket_of_the_essay():
    bucket = tokens_to_lend(Bucket("10/s", burst=10), 0, 0, SECOND)
    client = tokens_to_borrow(Bucket("10/s", burst=10), 0, 0, 0, SECOND)
    client.deposit(0, bucket.withdraw(0, 4))
    client.ledger.take(0, 3)
    assert client.ledger.reset_after(0) == 750_000_000
    assert client.withdraw(0, 1) == ((1, 0),)
    client.deposit(0, ((1, 0),))
    assert client.withdraw(0, 2) == ((2, 750_000_000),)
    bucket.deposit(0, ((2, 750_000_000),))
    assert bucket.ledger.reset_after(0) == 187_500_000


def test_units_that_meet_round_their_time_up():
    bucket = tokens_to_lend(Bucket("10/s", burst=10), 0, 0, SECOND)
    bucket.withdraw(0, 1)
    bucket.deposit(0, ((1, 1),))
    assert bucket.ledger.reset_after(0) == 1
    # What is kept by those that stay is rounded up too.
    bucket.deposit(0, ((1, 3),))
    assert bucket.withdraw(0, 4) == ((4, 0),)
    assert bucket.ledger.reset_after(0) == 4


def test_counts_of_a_fixed_window_are_gone_with_it():
    limit = FixedWindow(10, per="minute")
    counts = tokens_to_lend(limit, 1, 250, SECOND)
    client = tokens_to_borrow(limit, 1, 250, 1000, SECOND)
    now = 30 * SECOND
    client.deposit(now, counts.withdraw(now, 4))
    assert counts.longest_lease(now) == 30 * SECOND
    client.ledger.take(now, 3)
    assert client.ledger.latest_wait(now, 2) == FOREVER
    assert (client.count(now), counts.count(now)) == (1, 6)
    counts.deposit(now, client.withdraw(now, 5))
    assert counts.count(now) == 7
    counts.forfeit(now, 3, now)
    assert counts.count(now) == 7
    assert counts.count(60 * SECOND) == 10


def test_slots_in_use_stay_with_their_holder():
    slots = tokens_to_lend(Concurrency(5), 1, 250, SECOND)
    client = tokens_to_borrow(Concurrency(5), 1, 250, 1000, SECOND)
    slots.ledger.take(0, 1)
    client.deposit(0, slots.withdraw(0, 9))
    mark = client.ledger.take(0, 3)
    assert client.withdraw(0, 9) == ((1, 0),)
    client.ledger.complete(0, 3, mark)
    slots.forfeit(0, 1, 0)
    assert (client.count(0), slots.count(0)) == (3, 1)


def test_spans_are_stretched_to_the_safe_side():
    for span in (1, 999, 10**9, 86_400 * 10**9 + 1):
        assert at_most(span, 1000) * (10**6 - 1000) >= span * 10**6
        assert at_least(span, 250) * 10**6 >= span * (10**6 + 250)


def test_what_cannot_be_lent_is_refused_with_the_reason():
    for limit, why in (
        (Spacing(6), "one slot at a time"),
        (AllOf(Window(1, per=1), Window(2, per=2)), "accepted: a Window, Bucket"),
    ):
        with pytest.raises(InvalidLimit, match=why):
            tokens_to_lend(limit, 1, 250, SECOND)
        with pytest.raises(InvalidLimit, match=why):
            tokens_to_borrow(limit, 1, 250, 1000, SECOND)
