# mypy: disable-error-code="arg-type, unreachable, comparison-overlap"
"""A copy of a gate equals the gate at every clock value that it is at, whatever is lost or repeated on the way."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway
from headway import Change, EventStatus, InvalidArgument, Once, Snapshot
from headway.core.once import OnceGate, OnceRule
from headway.engines.base import GateView
from headway.once import Replica
from headway.once.results import change_of, snapshot_of
from headway.testing import ManualClock, run

US = 1000
DURATION = 5_000 * US
SUBMITTED, PUBLISHED, INVALIDATED = EventStatus.SUBMITTED, EventStatus.PUBLISHED, EventStatus.INVALIDATED


class World:
    """A gate, what it was at every clock value that could be seen, and a connection that forgets and repeats."""

    def __init__(self, strict, began=1_700_000_000_000_000_000):
        self.rule = OnceRule(DURATION, strict, max_pending=50, retention=3 * DURATION)
        self.now = began
        self.truth = {}
        self.sent = []  # all that was ever sent, for duplicates
        self.wire = []
        self.ids = 0
        self.replica = Replica(DURATION / 1e9, "strict" if strict else "only")
        self.restart()

    def restart(self):
        """The gate is lost, and another begins."""
        self.now += US
        self.began, self.gate, self.told = self.now, OnceGate(self.rule), 0
        self.note()

    def note(self):
        snapshot = self.snapshot()
        self.truth[snapshot.began, snapshot.clock] = snapshot.pending
        new = self.gate.changes(self.told)
        if new is None:
            self.send(snapshot)  # the gate does not keep them any more
        else:
            for line in new:
                self.send(change_of(line, self.began))
        self.told = self.gate.clock

    def send(self, item):
        self.wire.append(item)
        self.sent.append(item)

    def snapshot(self):
        return snapshot_of(GateView(self.began, self.gate.snapshot(self.now)))

    def submit(self, event, pause):
        self.now += pause * US
        self.ids += 1
        self.gate.submit(self.now, event, f"id{self.ids}", value=event * 2)
        self.note()

    def wait(self, pause):
        self.now += pause * US
        self.gate.advance(self.now)
        self.note()

    def reconnect(self):
        """What a subscription does with `since`."""
        since = self.replica.since
        self.wire.clear()
        missed = None
        if since is not None and since.began == self.began / 1e9:
            missed = self.gate.changes(since.clock)
        if missed is None:
            self.send(self.snapshot())
        else:
            for line in missed:
                self.send(change_of(line, self.began))

    def deliver(self, count):
        for item in self.wire[:count]:
            self.apply(item)
        del self.wire[:count]

    def apply(self, item):
        replica = self.replica
        before = replica.clock, replica.pending, replica.began
        if not replica.apply(item):
            assert (replica.clock, replica.pending, replica.began) == before
        elif isinstance(item, Change):
            assert replica.clock == item.clock == before[0] + 1
        if (replica.began, replica.clock) in self.truth:
            assert replica.pending == self.truth[replica.began, replica.clock]
        assert replica.needs_key_frame == (replica.since is None)


STEPS = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from("abc"), st.integers(0, 6000)),
    st.tuples(st.just("submit"), st.sampled_from("abc"), st.integers(0, 6000)),
    st.tuples(st.just("deliver"), st.integers(1, 5)),
    st.tuples(st.just("deliver"), st.integers(1, 5)),
    st.tuples(st.just("wait"), st.integers(0, 30_000)),
    st.tuples(st.just("reconnect")),
    st.tuples(st.just("drop"), st.integers(0, 5)),
    st.tuples(st.just("repeat"), st.integers(0, 5), st.integers(0, 5)),
    st.tuples(st.just("restart")),
)


@settings(max_examples=300)
@given(strict=st.booleans(), steps=st.lists(STEPS, max_size=60))
def test_a_copy_equals_the_gate_at_every_clock_value(strict, steps):
    world = World(strict)
    for name, *arguments in steps:
        if name == "drop":
            del world.wire[arguments[0] : arguments[0] + 1]
        elif name == "repeat":
            back, place = arguments
            changes = [item for item in world.sent if isinstance(item, Change)]
            world.wire[place:place] = changes[-1 - back : len(changes) - back]
        else:
            getattr(world, name)(*arguments)
    world.deliver(len(world.wire))
    # Whatever happened: one reconnection, and it is the gate again.
    world.reconnect()
    world.deliver(len(world.wire))
    snapshot = world.snapshot()
    assert (world.replica.began, world.replica.clock) == (snapshot.began, snapshot.clock)
    assert world.replica.pending == snapshot.pending
    assert not world.replica.needs_key_frame


# -- one thing at a time


def change(clock, status, id, began=1.0):
    return Change(clock, status, id, f"event {id}", None, 10.0 + clock, began)


def at(clock, *changes):
    replica = Replica(5, "strict")
    assert replica.apply(Snapshot(clock, 10.0, (), 1.0))
    for one in changes:
        assert replica.apply(one)
    return replica


def test_a_new_copy_needs_a_key_frame_or_the_first_change():
    replica = Replica(5, "strict")
    assert (replica.clock, replica.pending, replica.since, replica.began) == (0, (), None, None)
    assert replica.needs_key_frame
    assert not replica.apply(change(3, SUBMITTED, "a"))
    assert replica.needs_key_frame
    assert replica.apply(Snapshot(3, 10.0, (), 1.0))
    assert not replica.needs_key_frame
    first = change(1, SUBMITTED, "a")
    replica = Replica(5, "strict")
    assert replica.apply(first)
    assert replica.since == first
    assert [(one.id, one.time, one.due, one.clock) for one in replica.pending] == [("a", 11.0, 16.0, 1)]


def test_an_event_is_due_when_the_gate_says():
    for mode, due in (("strict", 16.0), ("only", 11.0)):  # `only` publishes at once
        replica = Replica("5s", mode)
        assert replica.apply(change(1, SUBMITTED, "a"))
        assert [one.due for one in replica.pending] == [due]


def test_a_gap_is_noticed_and_nothing_is_applied_until_a_key_frame():
    replica = at(3, change(4, SUBMITTED, "a"))
    pending = replica.pending
    assert not replica.apply(change(6, SUBMITTED, "c"))
    assert replica.needs_key_frame
    assert replica.since is None
    assert "needs a key frame" in repr(replica)
    for late in (change(5, SUBMITTED, "b"), change(7, PUBLISHED, "a")):
        assert not replica.apply(late)
    assert (replica.clock, replica.pending) == (4, pending), "what it was, and no more"
    key_frame = Snapshot(7, 20.0, (), 1.0)
    assert replica.apply(key_frame)
    assert (replica.clock, replica.pending, replica.since) == (7, (), key_frame)
    assert replica.apply(change(8, SUBMITTED, "d"))


@pytest.mark.parametrize(
    "contradiction",
    [
        change(5, PUBLISHED, "x"),  # the end of what is not pending
        change(5, INVALIDATED, "x"),
        change(5, SUBMITTED, "a"),  # it began already
        change(4, SUBMITTED, "x"),  # another change had this clock value
        change(5, SUBMITTED, "b", began=2.0),  # another gate
        change(1, SUBMITTED, "b", began=2.0),
    ],
)
def test_a_contradiction_is_a_gap(contradiction):
    replica = at(3, change(4, SUBMITTED, "a"))
    assert not replica.apply(contradiction)
    assert replica.needs_key_frame
    assert [one.id for one in replica.pending] == ["a"]


def test_what_was_delivered_twice_is_ignored():
    replica = at(3, change(4, SUBMITTED, "a"), change(5, PUBLISHED, "a"))
    for old in (change(3, SUBMITTED, "z"), change(4, SUBMITTED, "a"), change(5, PUBLISHED, "a")):
        assert not replica.apply(old)
    assert not replica.needs_key_frame
    replica = at(3)
    assert not replica.apply(change(3, SUBMITTED, "z")), "the key frame has it"
    assert not replica.needs_key_frame


def test_an_older_key_frame_is_believed():
    replica = at(3, change(4, SUBMITTED, "a"))
    older = Snapshot(2, 9.0, (), 1.0)
    assert replica.apply(older)
    assert (replica.clock, replica.pending, replica.since) == (2, (), older)


def test_input_that_is_none_is_refused():
    with pytest.raises(InvalidArgument, match="Change or a Snapshot"):
        Replica(5).apply((1, SUBMITTED))
    with pytest.raises(InvalidArgument, match="mode"):
        Replica(5, "often")
    with pytest.raises(InvalidArgument, match="duration"):
        Replica(0)
    assert not hasattr(headway, "Replica"), "headway.once.Replica"


# -- a real subscription


@pytest.mark.parametrize("mode", ["only", "strict"])
@pytest.mark.parametrize("seed", range(5))
def test_through_subscriptions_that_end_and_resume(mode, seed):
    draw, clock = random.Random(seed), ManualClock()
    gate = Once(10, mode, clock=clock, retention=40)
    replica = Replica(10, mode)
    subscription, key_frames, compared = gate.subscribe(), 0, 0
    for _ in range(300):
        gate.submit(draw.choice("abcdef"))
        clock.advance(draw.choice([0, 0.3, 4]))
        if draw.random() < 0.1:  # away, now and then for longer than changes are kept
            subscription.close()
            clock.advance(draw.choice([1, 100]))
            subscription = gate.subscribe(since=replica.since)
        if draw.random() < 0.5:
            snapshot = gate.snapshot()
            while replica.clock < snapshot.clock or replica.since is None:
                item = next(subscription)
                key_frames += isinstance(item, Snapshot)
                if isinstance(item, Snapshot) or draw.random() > 0.02:  # or it is lost on the way
                    replica.apply(item)
                if replica.needs_key_frame or item.clock >= snapshot.clock > replica.clock:
                    subscription = gate.subscribe(since=replica.since)
            assert (replica.clock, replica.began) == (snapshot.clock, snapshot.began)
            assert replica.pending == snapshot.pending
            compared += 1
    assert key_frames > 2
    assert compared > 100


def test_for_a_task():
    async def main():
        gate, replica = Once(60, "strict"), Replica(60, "strict")
        await gate.submit_async("a", id="a")
        seen = []

        async def follow():
            async for item in gate.subscribe(since=replica.since):
                replica.apply(item)
                seen.append((replica.clock, [one.id for one in replica.pending]))
                if replica.clock == 4:
                    return

        follower = asyncio.ensure_future(follow())
        await asyncio.sleep(30)
        await gate.submit_async("b", id="b")
        await follower
        return seen

    assert run(main()) == [(1, ["a"]), (2, ["a", "b"]), (3, ["b"]), (4, [])]
