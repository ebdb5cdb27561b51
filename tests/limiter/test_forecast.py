"""A new waiter is told when its turn will come. A waiter that is told a wrong time wakes twice."""

import pytest

from headway import Limiter
from headway.core.wait_queue import Ticket
from headway.testing import ManualClock

pytestmark = pytest.mark.both_forms

MS = 1_000_000


class Line:
    """A limiter whose waiters are asked by hand, as late as a busy machine wakes them."""

    def __init__(self, limit):
        self.clock = ManualClock()
        self.store = Limiter(limit, clock=self.clock)._store

    def come(self):
        ticket = Ticket((None,), (1,))
        self.store.decide(ticket, True)
        return ticket

    def ask(self, ticket):
        return self.store.decide(ticket, True)

    def at(self, ms):
        self.clock.advance(ms / 1000 - self.clock.now() / 1e9)


def test_a_late_head_takes_the_slot_it_was_due_and_the_newcomer_is_told_so():
    line = Line("1000/s burst 1")
    assert line.come().granted
    head = line.come()
    assert head.ready == 1 * MS
    line.at(1.4)
    newcomer = line.come()
    assert newcomer.ready == 2 * MS
    assert line.ask(head)
    line.at(2)
    assert line.ask(newcomer)


def test_no_waiter_is_expected_to_be_served_before_it_came():
    line = Line("1000/s burst 1")
    assert line.come().granted
    early = [line.come(), line.come()]
    assert [ticket.ready for ticket in early] == [1 * MS, 2 * MS]
    line.at(5)
    late = [line.come(), line.come()]
    assert [ticket.ready for ticket in late] == [5 * MS, 6 * MS]
    assert [line.ask(ticket) for ticket in early + late] == [True, True, True, False]
    line.at(6)
    assert line.ask(late[1])


def test_after_a_standstill_newcomers_are_told_the_new_times():
    line = Line("10/s burst 1")
    assert line.come().granted
    first, second, third = [line.come() for _ in range(3)]
    assert third.ready == 300 * MS
    line.at(1000)
    # Of the second that went by, 50 ms are made up for: the schedule is later than it was.
    assert line.ask(first)
    assert not line.ask(second)
    assert second.ready == 1050 * MS
    newcomer = line.come()
    assert newcomer.ready == 1250 * MS
    for ticket, due in (second, 1050), (third, 1150), (newcomer, 1250):
        line.at(due)
        assert line.ask(ticket), due
