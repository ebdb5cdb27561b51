# mypy: disable-error-code="attr-defined, assignment, arg-type, union-attr"
"""Borrowed ledgers against a lender, in virtual time: whatever happens to calls and permits, the limit is kept.

A world has one lender and three clients. A trace of bytes says what happens next: a request, an end of a permit, a
call, the arrival or the loss of a message, another limit. A message that arrived may arrive again.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.borrowed import BorrowedRule
from headway.core.holder import Terms
from headway.core.lease import LeaseLedger
from headway.core.ledger import FOREVER, LONG_AGO
from headway.core.lendable import tokens_to_lend
from headway.core.limits import Bucket, Concurrency, FixedWindow, Window
from headway.core.remote import Remote
from headway.core.rules import rules_of
from headway.errors import EngineUnavailable, PermitExpired
from headway.lab.leases.audit import above

TERMS = Terms(ttl=1200, margin=1, predict=1600, resend=100, resolution=0, drift_ppm=0, ledger_drift_ppm=0)
TRANSIT = 150
LIMITS = {
    "window": Window(6, per="400ns", remote=False),
    "remote": Window(6, per="400ns", remote=Remote(resolution=0, drift_ppm=0, max_transit=f"{TRANSIT}ns")),
    "bucket": Bucket((6, "400ns"), burst=6),
    "fixed_window": FixedWindow(6, per="700ns"),
    "concurrency": Concurrency(6),
}
HIGHER = {
    "window": Window(9, per="400ns", remote=False),
    "bucket": Bucket((9, "400ns"), burst=6),
    "fixed_window": FixedWindow(9, per="700ns"),
    "concurrency": Concurrency(9),
}
traced = settings(derandomize=True, max_examples=60)
TRACES = st.binary(min_size=480, max_size=480)


class Permit:
    def __init__(self, ledger, mark, cost, times):
        self.ledger, self.mark, self.tally, self.cost, self.times = ledger, mark, ledger.tally, cost, times


class Client:
    """What a limiter does with one borrowed ledger; see `headway.limiter.lease_calls`."""

    def __init__(self, name, limit):
        self.client, self.calls, self.woken = name, 0, []
        self.rule = self.rule_of(limit)
        self.ledger = self.rule.open()
        self.permits: list[Permit] = []

    def rule_of(self, limit):
        return BorrowedRule(limit, rules_of(limit, 1, 0)[0], TERMS, self)

    def wake(self, ledger):
        self.woken.append(ledger)

    def call(self, now, closing=False):
        self.ledger = self.ledger.current(now)
        self.calls += 1
        holder = self.ledger.holder
        if holder.pending is None and holder.lease != 0 and (self.ledger.relet or closing):
            return self.ledger.close(now)
        return self.ledger.call(now)

    def in_use(self, now):
        """Slots that are in use under a lease that is not over."""
        return sum(permit.cost for permit in self.permits if now < permit.ledger.stop)


class World:
    def __init__(self, limit):
        self.now = 7 * 700
        self.limit = limit
        tokens = tokens_to_lend(limit, 0, 0, TERMS.ttl)
        self.lender = LeaseLedger(tokens, TERMS.ttl, 0, TERMS.predict)
        self.clients = [Client(name, limit) for name in "ABC"]
        self.calls, self.answers = [], []
        self.times: list[list[int]] = []

    def run(self, trace):
        for i in range(0, len(trace), 4):
            verb, who, what, more = trace[i : i + 4]
            self.now += more if verb % 16 else more * 12
            STEPS[verb % len(STEPS)](self, self.clients[who % 3], what, more)
            self.audit()
        return self

    # -- what happens

    def request(self, client, what, more):
        ledger, cost = client.ledger, 1 + what % 3
        self.check_contract(ledger, cost)
        ledger.asked(self.now, cost)
        if ledger.wait(self.now, cost):
            return
        if isinstance(self.limit, Window) and self.limit.remote:
            mark, used = ledger.take_held(self.now, cost), self.now + more % (TRANSIT + 1)
        else:
            mark, used = ledger.take(self.now, cost), self.now
        times = [] if isinstance(self.limit, Concurrency) else [used] * cost
        self.times.append(times)
        client.permits.append(Permit(ledger, mark, cost, times))

    def end(self, client, what, more):
        if not client.permits:
            return
        permit = client.permits.pop(what % len(client.permits))
        ledger, cost, mark, tally = permit.ledger, permit.cost, permit.mark, permit.tally
        remaining = ledger.remaining(self.now)
        how = ("complete", "cancel", "abandon", "settle")[more % 4]
        if how == "cancel":
            ledger.cancel(self.now, cost, mark, tally)
            permit.times.clear()
        elif how == "settle":
            actual = what % (cost + 1)
            ledger.settle(self.now, cost, mark, tally, actual)
            del permit.times[actual:]
        elif how == "abandon" or any(used > self.now for used in permit.times):
            ledger.abandon(self.now, cost, mark)
        else:
            ledger.complete(self.now, cost, mark)
        if ledger.dead:
            assert remaining == ledger.remaining(self.now) == 0

    def call(self, client, what, more):
        self.calls.append((client, client.call(self.now, closing=what % 16 == 0)))

    def hear(self, client, what, more):
        if self.calls:
            client, call = self.calls[what % len(self.calls)]
            answer = self.lender.sync(self.now, call)
            if answer is not None:
                self.answers.append((client, answer))
            if more % 4:
                self.calls.remove((client, call))

    def answer(self, client, what, more):
        if self.answers:
            client, answer = self.answers.pop(what % len(self.answers))
            before = client.ledger
            client.ledger = before.answered(self.now, answer)
            assert before.dead == (client.ledger is not before)
            if more % 4 == 0:
                self.answers.append((client, answer))

    def exchange(self, client, what, more):
        """A call that is heard and answered at once: most are."""
        answer = self.lender.sync(self.now, client.call(self.now))
        if answer is not None:
            client.ledger = client.ledger.answered(self.now, answer)

    def lose(self, client, what, more):
        lost = self.calls if what % 2 else self.answers
        if lost:
            lost.pop(more % len(lost))

    # -- what must hold

    def audit(self):
        if isinstance(self.limit, Concurrency):
            assert sum(client.in_use(self.now) for client in self.clients) <= self.limit.capacity
            return
        times = sorted(used for permit in self.times for used in permit)
        assert above(self.limit, times) == 0, times

    def check_contract(self, ledger, cost):
        """What `core.ledger` says of `wait`, `exact` and `latest_wait`, as long as no answer comes."""
        now, wait = self.now, ledger.wait(self.now, cost)
        assert wait <= TERMS.ttl // 12 or ledger.held >= ledger.rule.capacity
        if wait > 1:
            assert ledger.copy().wait(now + wait - 1, cost) > 0
        if ledger.exact(now, cost) and now + wait < ledger.stop:
            assert ledger.copy().wait(now + wait, cost) == 0
        sure = ledger.latest_wait(now, cost)
        assert sure >= wait
        if sure < FOREVER and now + sure < ledger.stop:
            assert ledger.copy().wait(now + sure, cost) == 0


STEPS = [
    World.request, World.request, World.request, World.request, World.request, World.end, World.end,
    World.call, World.hear, World.answer, World.exchange, World.exchange, World.lose,
]  # fmt: skip


@pytest.mark.parametrize("kind", LIMITS)
@traced
@given(trace=TRACES)
def test_never_above_whatever_happens_to_calls_and_permits(kind, trace):
    World(LIMITS[kind]).run(trace)


class ChangingWorld(World):
    """One in which the limit goes up, once."""

    def __init__(self, before, after):
        super().__init__(before)
        self.after = after

    def change(self, client, what, more):
        if self.limit is self.after:
            return
        self.limit = self.after
        (rule,) = rules_of(self.after, 1, 0)
        self.lender.tokens.reconfigure(rule, self.now)
        self.lender.resized(self.now)
        for each in self.clients:
            each.rule = each.rule_of(self.after)
            each.ledger.reconfigure(each.rule, self.now)


@pytest.mark.parametrize("kind", HIGHER)
@traced
@given(trace=TRACES)
def test_never_above_a_higher_limit_that_comes_in_between(kind, trace):
    world = ChangingWorld(LIMITS[kind], HIGHER[kind])
    world.run(trace[:240]).change(None, 0, 0)
    world.run(trace[240:])


# -- one thing at a time


def lent(limit, now=0, requests=40):
    """A client that had its first answer, with about all tokens, and its lender."""
    world = World(limit)
    world.now = now
    client = world.clients[0]
    for k in range(requests):
        client.ledger.asked(now - requests + k, 1)
    for _ in range(3):
        client.ledger.holder.lacked = True
        world.exchange(client, 0, 0)
    assert client.ledger.remaining(now) >= 3
    return world, client


@pytest.mark.parametrize("kind", LIMITS)
def test_after_its_end_a_lease_grants_nothing_and_a_late_answer_brings_its_tokens_back(kind):
    world, client = lent(LIMITS[kind])
    ledger, stop = client.ledger, client.ledger.stop
    assert ledger.wait(stop - 1, 1) == 0
    answer = world.lender.sync(stop - 10, client.call(stop - 10))
    assert (ledger.wait(stop, 1), ledger.remaining(stop), ledger.exact(stop, 1)) == (
        TERMS.ttl // 12,
        0,
        False,
    )
    assert ledger.latest_wait(stop, 1) == FOREVER
    assert ledger.answered(stop + 5, answer) is ledger
    # Counts of a fixed window are gone with it.
    assert (ledger.wait(stop + 5, 1) == 0) == (kind != "fixed_window")


def test_a_bare_permit_is_entered_before_the_end_of_the_lease_or_not_at_all():
    _, client = lent(Window(6, per="400ns"))
    ledger = client.ledger
    marks = [ledger.take(1, 1) for _ in range(2)]
    assert ledger.enter(ledger.stop - 1, 1, marks[0], ledger.tally, ledger.stop - 1) >= 0
    with pytest.raises(PermitExpired):
        ledger.enter(ledger.stop, 1, marks[1], ledger.tally, ledger.stop)


def test_a_void_lease_has_a_successor_and_its_permits_end_on_the_dead_ledger():
    world, client = lent(Window(6, per="400ns"))
    before = client.ledger
    bare = before.take(1, 1)
    held = before.take_held(1, 1)
    world.now = 5000
    world.exchange(client, 0, 0)
    after = client.ledger
    assert after is not before
    assert (before.dead, before.stop, before.remaining(5000), after.remaining(5000)) == (True, LONG_AGO, 0, 0)
    with pytest.raises(PermitExpired):
        before.enter(5000, 1, bare, before.tally, 5000)
    before.complete(5000, 1, held)
    before.cancel(5000, 1, bare, before.tally)
    assert (before.remaining(5000), before.wait(5000, 1) > 0, before.idle(9000)) == (0, True, False)
    assert after.remaining(5000) == 0


def test_the_end_of_a_fixed_window_takes_its_tokens_away():
    _world, client = lent(LIMITS["fixed_window"], now=700)
    before = client.ledger
    mark = before.take(710, 1)
    assert before.current(710) is before
    assert before.stop < 1400
    after = before.current(before.stop)
    assert after is not before
    assert (before.dead, after.held, after.holder.lease) == (True, 0, 0)
    before.cancel(1400, 1, mark, before.tally)
    assert (before.remaining(1400), after.remaining(1400)) == (0, 0)


def test_a_copy_is_independent():
    _, client = lent(Window(6, per="400ns"))
    ledger = client.ledger
    client.call(20)
    before = (ledger.state(), ledger.holder.seq, ledger.holder.pending, list(ledger.holder.sent))
    twin = ledger.copy()
    assert twin.state() == ledger.state()
    twin.take(30, 2)
    twin.call(200)
    twin.holder.drop()
    twin.follow()
    assert (ledger.state(), ledger.holder.seq, ledger.holder.pending, ledger.holder.sent) == before


def test_tokens_of_another_rate_are_handed_back_before_any_is_spent():
    world, client = lent(Bucket((6, "400ns"), burst=6))
    ledger = client.ledger
    slower = Bucket((3, "400ns"), burst=6)
    ledger.reconfigure(client.rule_of(slower), 10)
    assert (ledger.remaining(10), ledger.wait(10, 1) > 0, ledger.relet) == (0, True, True)
    (rule,) = rules_of(slower, 1, 0)
    world.lender.tokens.reconfigure(rule, 10)
    world.lender.resized(10)
    world.now = 10
    world.exchange(client, 0, 0)
    assert ledger.dead
    assert not client.ledger.relet
    world.exchange(client, 0, 0)
    tokens = client.ledger.holder.tokens
    assert (tokens.permits, client.ledger.remaining(10) > 0) == (3, True)


def test_a_first_call_under_way_while_the_rate_changes_is_not_spent_at_the_old_rate():
    world = World(Bucket((6, "400ns"), burst=6))
    client, world.now = world.clients[0], 0
    client.ledger.asked(0, 6)
    answer = world.lender.sync(0, client.call(0))
    slower = Bucket((3, "400ns"), burst=6)
    client.ledger.reconfigure(client.rule_of(slower), 1)
    client.ledger = client.ledger.answered(2, answer)
    assert (client.ledger.remaining(2), client.ledger.relet) == (0, True)
    (rule,) = rules_of(slower, 1, 0)
    world.lender.tokens.reconfigure(rule, 2)
    world.lender.resized(2)
    world.exchange(client, 0, 0)
    world.exchange(client, 0, 0)
    assert client.ledger.holder.tokens.permits == 3


def test_a_key_that_was_forgotten_does_not_take_an_old_answer_for_its_own():
    """The lender remembers a client for a TTL, and gives its last answer to a repeated number."""
    world, client = lent(LIMITS["fixed_window"], now=700)
    answers = world.lender.leases["A"].seq
    client.ledger = client.rule.open()
    client.ledger.asked(800, 1)
    assert client.call(800).seq > answers


def test_the_error_of_a_lender_that_is_away_does_not_grow():
    _, client = lent(LIMITS["window"])
    ledger = client.ledger
    ledger.away = EngineUnavailable("redis://nowhere", "refused")
    ledger.check(ledger.stop - 1)
    lengths = []
    for _ in range(3):
        with pytest.raises(EngineUnavailable) as raised:
            ledger.check(ledger.stop)
        lengths.append(len(raised.traceback))
    assert len(set(lengths)) == 1


def test_a_busy_ledger_wakes_its_borrower_once_in_a_while_and_not_while_a_call_is_under_way():
    client = Client("A", LIMITS["window"])
    for now in range(10):
        client.ledger.asked(now, 1)
    assert client.woken == [client.ledger]
    client.call(10)
    client.ledger.asked(500, 1)
    assert len(client.woken) == 1


@pytest.mark.parametrize("limit", [Window(6, per="400ns", remote=False), Concurrency(6)], ids=str)
def test_more_tokens_than_the_limit_had_before_can_be_taken_at_once(limit):
    world, client = lent(limit)
    higher = type(limit)(20) if isinstance(limit, Concurrency) else Window(20, per="400ns", remote=False)
    (rule,) = rules_of(higher, 1, 0)
    world.lender.tokens.reconfigure(rule, 1)
    world.lender.resized(1)
    client.ledger.reconfigure(client.rule_of(higher), 1)
    world.now = 1
    for _ in range(6):
        client.ledger.holder.demand.note(1, 20)
        client.ledger.holder.lacked, client.ledger.holder.peak = True, 10
        world.exchange(client, 0, 0)
    assert client.ledger.held > 6
    assert client.ledger.wait(1, client.ledger.held) == 0
