# mypy: disable-error-code="attr-defined"
"""The two sides of a lease, one message at a time."""

import pytest

from headway.core.demand import Demand
from headway.core.holder import Holder, Terms
from headway.core.lease import LeaseLedger, Sync
from headway.core.ledger import FOREVER
from headway.core.lendable import tokens_to_lend
from headway.core.limits import Bucket, Concurrency, FixedWindow, Window

SECOND = 10**9
TWENTY = Window(20, per=1, remote=False)
TERMS = Terms(resolution=0, drift_ppm=0, ledger_drift_ppm=0)


def ledger_of(limit=TWENTY, terms=TERMS):
    tokens = tokens_to_lend(limit, terms.resolution, terms.ledger_drift_ppm, terms.ttl)
    return LeaseLedger(tokens, terms.ttl, terms.ledger_drift_ppm, terms.predict)


def ask(client, seq, want, *, lease=0, holding=0, back=()):
    return Sync(client, seq, 0, lease, want * 1000, holding, back)


def counted(answer):
    return sum(count for count, _ in answer.tokens)


# -- the ledger


def test_the_story_of_the_essay():
    ledger = ledger_of()
    first = ledger.sync(0, ask("A", 1, 20))
    assert (counted(first), first.recall, first.ttl, first.again) == (20, 0, 3 * SECOND, 0)
    short = ledger.sync(SECOND // 2, ask("B", 1, 20))
    assert (counted(short), short.again) == (0, SECOND // 4)
    renewed = ledger.sync(SECOND, ask("A", 2, 20, lease=first.lease, holding=20))
    assert renewed.recall == 10
    back = ((4, 0), (6, SECOND // 2))
    assert ledger.sync(SECOND, ask("A", 3, 20, lease=first.lease, holding=10, back=back)).recall == 0
    filled = ledger.sync(5 * SECOND // 4, ask("B", 2, 20, lease=short.lease))
    assert filled.tokens == ((4, 0), (6, SECOND // 4 + 1))
    assert filled.again == 0


def test_a_vanished_client_is_waited_for_until_its_end_and_a_gap():
    ledger = ledger_of()
    ledger.sync(0, ask("A", 1, 20))
    late = ledger.sync(3 * SECOND, ask("B", 1, 20))
    assert late.tokens == ((20, SECOND),)


def test_a_repeated_call_gets_the_same_answer_and_an_old_one_none():
    ledger = ledger_of()
    first = ledger.sync(0, ask("A", 1, 20))
    call = ask("A", 2, 10, lease=first.lease, holding=15, back=((5, 0),))
    second = ledger.sync(SECOND, call)
    assert ledger.sync(SECOND + 5, call) is second
    assert ledger.sync(SECOND + 6, ask("A", 1, 20)) is None
    assert ledger.tokens.count(SECOND) + ledger.held == 20


def test_a_call_about_a_lease_that_is_over_is_void_and_hands_nothing_back():
    ledger = ledger_of()
    first = ledger.sync(0, ask("A", 1, 20))
    late = ledger.sync(3 * SECOND, ask("A", 2, 20, lease=first.lease, holding=15, back=((5, 0),)))
    assert late.void
    assert late.lease == 0
    assert ledger.tokens.count(3 * SECOND) == 20
    assert ledger.sync(4 * SECOND, ask("A", 3, 20)).lease != first.lease


def test_a_call_that_hands_back_more_than_was_lent_is_void():
    ledger = ledger_of()
    first = ledger.sync(0, ask("A", 1, 3))
    assert ledger.sync(1, ask("A", 2, 3, lease=first.lease, back=((21, 0),))).void
    assert ledger.tokens.count(1) + ledger.held == 20


def test_a_client_that_lost_its_first_answer_begins_anew():
    ledger = ledger_of()
    ledger.sync(0, ask("A", 1, 20))
    # The tokens of the lost answer count as spent when that is known.
    assert ledger.sync(SECOND, ask("A", 2, 20)).tokens == ((20, SECOND),)


def test_nothing_is_recalled_while_all_are_content():
    ledger = ledger_of()
    first = ledger.sync(0, ask("A", 1, 20))
    second = ledger.sync(0, ask("B", 1, 0))
    assert ledger.sync(SECOND, ask("A", 2, 0, lease=first.lease, holding=20)).recall == 0
    assert ledger.sync(SECOND, ask("B", 2, 5, lease=second.lease)).again > 0
    assert ledger.sync(2 * SECOND, ask("A", 3, 0, lease=first.lease, holding=20)).recall > 0


def test_what_is_recalled_of_one_client_is_not_recalled_of_another():
    ledger = ledger_of()
    a = ledger.sync(0, ask("A", 1, 10))
    b = ledger.sync(0, ask("B", 1, 10))
    ledger.sync(1, ask("C", 1, 3))
    # B has 7 of 8, C none of 3.
    assert ledger.short == 4
    one = ledger.sync(2, ask("A", 2, 10, lease=a.lease, holding=counted(a)))
    two = ledger.sync(2, ask("B", 2, 10, lease=b.lease, holding=counted(b)))
    assert one.recall + two.recall == 4


def test_closing_gives_everything_back():
    ledger = ledger_of()
    first = ledger.sync(0, ask("A", 1, 20))
    ledger.sync(1, ask("A", 2, 0, lease=first.lease, back=((20, 5),))._replace(closing=True))
    assert (ledger.leases, ledger.held, ledger.tokens.count(1)) == ({}, 0, 20)


def test_single_permits_get_a_share_of_the_same_ledger():
    ledger = ledger_of()
    lease = ledger.sync(0, ask("A", 1, 20))
    assert counted(lease) == 20
    for k in range(40):
        assert ledger.direct(SECOND + k * SECOND // 40, 1) == SECOND
    renewed = ledger.sync(2 * SECOND, ask("A", 2, 20, lease=lease.lease, holding=20))
    assert renewed.recall == 10
    ledger.sync(2 * SECOND, ask("A", 3, 20, lease=lease.lease, holding=10, back=((10, 0),)))
    assert ledger.direct(2 * SECOND, 1) == 0
    ledger.tokens.ledger.take(2 * SECOND, 1)
    # What is left is not lent while single permits ask for it.
    assert counted(ledger.sync(2 * SECOND, ask("B", 1, 20))) < 10


def test_a_quarantine_waits_for_all_that_may_be_spent():
    ledger = ledger_of()
    first = ledger.sync(0, ask("A", 1, 12))
    ledger.quarantine(SECOND)
    assert ledger.sync(SECOND, ask("A", 2, 12, lease=first.lease, holding=12)).void
    assert counted(ledger.sync(2 * SECOND, ask("A", 3, 20))) == 0
    # One lease after the quarantine began, and a gap.
    assert counted(ledger.sync(4 * SECOND, ask("B", 1, 20))) > 0
    assert ledger.direct(4 * SECOND, 1) > 0


def test_a_fixed_window_is_lent_until_its_end_and_remembers_its_clients():
    ledger = ledger_of(FixedWindow(20, per="minute"))
    first = ledger.sync(59 * SECOND, ask("A", 1, 40))
    assert (counted(first), first.ttl) == (20, SECOND)
    ledger.sync(59 * SECOND, ask("B", 1, 40))
    # In the new minute both count, whichever comes first.
    assert counted(ledger.sync(60 * SECOND, ask("B", 2, 40))) == 10
    assert ledger.sync(60 * SECOND, ask("A", 2, 40, lease=first.lease, holding=20)).void
    assert counted(ledger.sync(60 * SECOND, ask("A", 3, 40))) == 10
    ledger.sync(62 * SECOND, ask("C", 1, 40))
    assert set(ledger.leases) == {"A", "B", "C"}
    ledger.expire(64 * SECOND)
    assert set(ledger.leases) == {"C"}


def test_a_client_that_vanished_is_forgotten_over_the_ends_of_windows():
    ledger = ledger_of(FixedWindow(20, per="1s"))
    ledger.sync(SECOND // 2, ask("gone", 1, 40))
    for second in range(6):
        assert ("gone" in ledger.leases) == (second <= 3)
        ledger.sync(second * SECOND + SECOND // 2 + 1, ask("A", second, 40))
    assert set(ledger.leases) == {"A"}


# -- the client


class Pair:
    """A client and a ledger, and a network that takes half a round trip each way."""

    def __init__(self, limit=TWENTY, terms=TERMS, trip=SECOND // 5):
        self.ledger = ledger_of(limit, terms)
        self.holder = Holder(limit, "A", terms)
        self.trip = trip

    def exchange(self, now):
        call = self.holder.call(now)
        answer = self.ledger.sync(now + self.trip // 2, call)
        assert answer is not None
        self.holder.answered(now + self.trip, answer)
        return answer

    def try_take(self, now):
        if self.holder.ask(now, 1):
            return False
        self.holder.tokens.ledger.take(now, 1)
        return True


def test_a_client_calls_first_when_it_is_asked():
    pair = Pair()
    assert pair.holder.next_call(0) == FOREVER
    assert not pair.try_take(0)
    assert pair.holder.next_call(0) == 0
    pair.exchange(0)
    assert pair.try_take(SECOND // 5)
    assert pair.holder.next_call(SECOND // 5) == SECOND


def test_the_end_of_a_lease_counts_from_before_the_call():
    terms = Terms(resolution=0)
    pair = Pair(terms=terms)
    pair.try_take(0)
    pair.exchange(10 * SECOND)
    end = 10 * SECOND + 3 * SECOND * (10**6 - 250) // (10**6 + 1000) - terms.margin
    assert pair.holder.stop == end
    assert pair.try_take(end - 1)
    assert not pair.try_take(end)
    # It keeps what it holds: an answer to a call that was heard in time goes on from there.
    assert pair.holder.held == 5


def test_of_several_attempts_the_one_that_was_heard_counts():
    pair = Pair()
    pair.holder.ask(0, 1)
    pair.holder.call(0)
    assert pair.holder.next_call(0) == TERMS.resend
    again = pair.holder.call(SECOND)
    answer = pair.ledger.sync(SECOND, again)
    third = pair.holder.call(2 * SECOND)
    assert pair.ledger.sync(2 * SECOND, third) is answer
    assert pair.holder.answered(2 * SECOND, answer)
    assert pair.holder.stop == SECOND + TERMS.ttl - TERMS.margin
    assert not pair.holder.answered(2 * SECOND, answer)


def test_recalled_tokens_go_back_with_the_next_call_which_is_due_at_once():
    pair = Pair()
    for k in range(40):
        pair.holder.ask(k * SECOND // 20, 1)
    pair.exchange(2 * SECOND)
    assert pair.holder.held == 20
    pair.ledger.sync(2 * SECOND, ask("B", 1, 10))
    now = 3 * SECOND
    assert pair.exchange(now).recall == 10
    assert pair.holder.next_call(now) == now
    call = pair.holder.call(now)
    assert sum(count for count, _ in call.back) == 10
    assert (call.holding, pair.holder.held) == (10, 10)


def test_void_forgets_everything_and_begins_anew():
    pair = Pair()
    pair.try_take(0)
    pair.exchange(0)
    assert pair.exchange(10 * SECOND).void
    assert (pair.holder.held, pair.holder.lease) == (0, 0)
    assert pair.holder.wait(10 * SECOND, 1) > 0
    assert not pair.exchange(11 * SECOND).void
    assert pair.try_take(12 * SECOND)


def test_a_call_that_grew_is_made_once_and_not_while_there_is_no_more():
    pair = Pair()
    pair.try_take(0)
    pair.exchange(0)
    held = pair.holder.held
    now = SECOND // 5
    while not pair.holder.grown(now):
        pair.try_take(now)
        now += SECOND // 100
    assert pair.holder.demand.expected(now) > held * 1000
    pair.exchange(now)
    for k in range(200):
        pair.try_take(now + TERMS.ttl // 12 + k * 1000)
    # All twenty are here: asking for more would change nothing.
    assert pair.holder.held == 20
    pair.exchange(now + SECOND // 2)
    assert not pair.holder.grown(now + SECOND)


def test_closing_hands_back_what_is_not_in_use():
    pair = Pair(Concurrency(4))
    pair.try_take(0)
    pair.exchange(0)
    pair.exchange(SECOND)
    assert pair.try_take(SECOND + SECOND // 5)
    held = pair.holder.held
    assert held >= 2
    call = pair.holder.close(2 * SECOND)
    assert call.closing
    assert (sum(count for count, _ in call.back), call.holding) == (held - 1, 1)
    pair.ledger.sync(2 * SECOND, call)
    assert pair.ledger.tokens.count(2 * SECOND) == 4


@pytest.mark.parametrize("limit", [TWENTY, Bucket("20/s", burst=20)], ids=str)
def test_a_holder_alone_is_as_good_as_the_limit_itself(limit):
    pair = Pair(limit)
    pair.try_take(0)
    for k in range(10):
        pair.exchange(k * SECOND)
        for n in range(20):
            assert pair.try_take(k * SECOND + SECOND // 5 + n * SECOND // 25) or k == 0


# -- demand


def test_demand_follows_what_is_steady_and_what_has_surely_changed():
    demand = Demand(4 * SECOND, 60 * SECOND)
    for k in range(20 * 120):
        demand.note(k * SECOND // 20, 1)
    now = 120 * SECOND
    assert 1_150_000 < demand.expected(now) < 1_250_000
    assert demand.expected(now + 3 * SECOND) <= 65_000
    assert demand.expected(now + 500 * SECOND) == 0
    for k in range(40):
        demand.note(now + 500 * SECOND + k * SECOND // 20, 1)
    # Two seconds of a new traffic, known for certain by its root.
    assert demand.expected(now + 502 * SECOND) > 700_000


# -- another limit


@pytest.mark.parametrize(
    ("limit", "lower"),
    [
        (TWENTY, Window(5, per=1, remote=False)),
        (Bucket("20/s", burst=20), Bucket("20/s", burst=5)),
        (FixedWindow(20, per="day"), FixedWindow(5, per="day")),
        (Concurrency(20), Concurrency(5)),
    ],
    ids=lambda limit: limit.kind,
)
def test_a_lower_limit_is_recalled_and_nothing_is_lent_meanwhile(limit, lower):
    ledger = ledger_of(limit)
    first = ledger.sync(0, ask("A", 1, 16))
    assert 16 <= counted(first) <= 17
    held = counted(first)
    ledger.tokens.reconfigure(ledger_of(lower).tokens.ledger.get_rule(), 1)
    ledger.resized(1)
    assert ledger.tokens.balance(1) == 5 - held
    assert ledger.direct(1, 1) > 0
    assert counted(ledger.sync(2, ask("B", 1, 5))) == 0
    second = ledger.sync(3, ask("A", 2, 16, lease=first.lease, holding=held))
    # B and the single permit have shares of the five as well.
    assert second.recall >= held - 5
    back = ((second.recall, 0),)
    kept = held - second.recall
    ledger.sync(4, ask("A", 3, 16, lease=first.lease, holding=kept, back=back))
    assert ledger.tokens.count(4) + ledger.held == 5
    assert ledger.tokens.balance(4) >= 0


def test_waiters_for_single_permits_are_demand_for_as_long_as_they_wait():
    ledger = ledger_of()
    first = ledger.sync(0, ask("A", 1, 20))
    ledger.waiting = 2
    assert ledger.sync(60 * SECOND, ask("B", 1, 20)).lease
    assert ledger.direct_share == 2
    assert first.lease


def test_a_part_of_a_bucket_whose_fraction_does_not_fit_is_slower_and_never_faster():
    limit = Bucket((1_000_003, "day"), burst=1_000_003)
    tokens = tokens_to_lend(limit, 1000, 0, 3 * 10**6, 1000)
    tokens.withdraw(0, 500_000)
    rule = tokens.ledger.get_rule()
    assert rule.parts == 1
    exact = 86_400_000_000 / 500_003
    assert exact <= rule.whole < exact + 1
