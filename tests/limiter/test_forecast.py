"""What a newcomer to a line is told is when its turn will come: who is told another time wakes twice."""

import pytest

from headway import Limiter
from headway.core.wait_queue import Ticket
from headway.testing import ManualClock

pytestmark = pytest.mark.both_forms

MS = 1_000_000


class LocalLimiter:
    """A limiter whose waiters are asked by hand, as late as a busy machine wakes them."""

    def __init__(self, limit):
        self.clock = ManualClock()
        self.book = Limiter(limit, clock=self.clock)._store

    def come(self):
        ticket = Ticket((None,), (1,))
        self.book.decide(ticket, True)
        return ticket

    def ask(self, ticket):
        return self.book.decide(ticket, True)

    def at(self, ms):
        self.clock.advance(ms / 1000 - self.clock.now() / 1e9)


def test_a_late_head_takes_the_slot_it_was_due_and_the_newcomer_is_told_so():
    desk = LocalLimiter("1000/s burst 1")
    assert desk.come().granted
    head = desk.come()
    assert head.ready == 1 * MS
    desk.at(1.4)
    newcomer = desk.come()
    assert newcomer.ready == 2 * MS
    assert desk.ask(head)
    desk.at(2)
    assert desk.ask(newcomer)


def test_nobody_is_expected_to_be_served_before_it_came():
    desk = LocalLimiter("1000/s burst 1")
    assert desk.come().granted
    early = [desk.come(), desk.come()]
    assert [ticket.ready for ticket in early] == [1 * MS, 2 * MS]
    desk.at(5)
    late = [desk.come(), desk.come()]
    assert [ticket.ready for ticket in late] == [5 * MS, 6 * MS]
    assert [desk.ask(ticket) for ticket in early + late] == [True, True, True, False]
    desk.at(6)
    assert desk.ask(late[1])


def test_after_a_standstill_newcomers_are_told_the_new_times():
    desk = LocalLimiter("10/s burst 1")
    assert desk.come().granted
    first, second, third = [desk.come() for _ in range(3)]
    assert third.ready == 300 * MS
    desk.at(1000)
    # Of the second that went by, 50 ms are made up for: the schedule is later than it was.
    assert desk.ask(first)
    assert not desk.ask(second)
    assert second.ready == 1050 * MS
    newcomer = desk.come()
    assert newcomer.ready == 1250 * MS
    for ticket, due in (second, 1050), (third, 1150), (newcomer, 1250):
        desk.at(due)
        assert desk.ask(ticket), due
