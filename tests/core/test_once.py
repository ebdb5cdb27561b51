# mypy: disable-error-code="var-annotated"
"""The gate that lets an event through once: against a model that remembers everything, and by its laws."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.once import TRANSITIONS, EventStatus, OnceGate, OnceRule
from headway.errors import GateFull, IdReused

REJECTED, SUBMITTED, INVALIDATED, PUBLISHED = EventStatus
SEED = [(1, "pizza"), (2, "taco"), (3, "taco"), (4, "taco"), (7, "taco")]


def gate(*, strict, duration=3, room=100, retention=1000):
    return OnceGate(OnceRule(duration, strict, room, retention))


def published(gate):
    """(time of submission, event) of what was let through, in order."""
    submitted = {line.id: line.time for line in gate.changes(0) if line.status == SUBMITTED}
    return [(submitted[line.id], line.event) for line in gate.changes(0) if line.status == PUBLISHED]


@pytest.mark.parametrize(
    ("strict", "allowed"),
    [(False, [(1, "pizza"), (2, "taco"), (7, "taco")]), (True, [(1, "pizza"), (7, "taco")])],
    ids=["only", "strict"],
)
def test_the_examples_that_it_grew_from(strict, allowed):
    once = gate(strict=strict)
    for number, (at, event) in enumerate(SEED):
        once.submit(at, event, str(number))
    once.advance(100)
    assert published(once) == allowed


# -- a model that remembers everything --------------------------------------------------------------------


def model(events, duration, strict, end):
    """What each event is told, and when what becomes of it, from the whole history."""
    fates = []
    for i, (at, event) in enumerate(events):
        earlier = [
            (t, told)
            for (t, other), (told, _) in zip(events[:i], fates, strict=False)
            if other == event and (strict or told)
        ]
        accepted = all(at - t >= duration for t, _ in earlier)
        repeat = next((t for t, other in events[i + 1 :] if other == event), None)
        if not accepted:
            fate = REJECTED
        elif not strict:
            fate = PUBLISHED
        elif repeat is not None and repeat - at < duration:
            fate = INVALIDATED
        else:
            fate = PUBLISHED if at + duration <= end else SUBMITTED
        fates.append((accepted, fate))
    return fates


histories = st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abc")), max_size=40)


@settings(max_examples=400)
@given(steps=histories, duration=st.integers(1, 8), strict=st.booleans(), rest=st.integers(0, 10))
def test_it_agrees_with_a_model_that_remembers_everything(steps, duration, strict, rest):
    once, now, events = gate(strict=strict, duration=duration, retention=10**6), 0, []
    told = []
    for number, (wait, event) in enumerate(steps):
        now += wait
        events.append((now, event))
        told.append(once.submit(now, event, str(number)).accepted)
    end = now + rest
    fates = model(events, duration, strict, end)
    assert told == [accepted for accepted, _ in fates]
    assert [once.status(end, str(number)) for number in range(len(events))] == [fate for _, fate in fates]


# -- laws -------------------------------------------------------------------------------------------------

commands = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from("abcd"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.integers(-3, 9)),
        st.tuples(st.just("look")),
    ),
    max_size=60,
)


@settings(max_examples=400)
@given(commands=commands, strict=st.booleans(), room=st.integers(1, 4), retention=st.integers(0, 20))
def test_the_laws(commands, strict, room, retention):
    """No gaps; submitted before its end; one end; what was refused changes nothing; bounds hold; time is monotonic."""
    once, now, log, replica = gate(strict=strict, room=room, retention=retention), 0, [], {}
    for what, *rest in commands:
        before = once.clock
        if what == "wait":
            now += rest[0]
            once.advance(now)
        elif what == "submit":
            event, number = rest
            try:
                answer = once.submit(now, event, f"{event}{number}")
                assert answer == once.submit(now, event, f"{event}{number}"), "a repetition is told the same"
            except GateFull:
                assert len(once.seen) == room
        fresh = once.changes(before)
        assert [line.clock for line in fresh] == list(range(before + 1, once.clock + 1))
        log += fresh
        for line in fresh:
            if line.status == SUBMITTED:
                assert line.id not in replica
                replica[line.id] = line.event
            else:
                assert replica.pop(line.id) == line.event, "it was submitted before, and ends once"
        snapshot = once.snapshot(now)
        assert snapshot.clock == once.clock
        assert [pending.id for pending in snapshot.pending] == list(replica), "a replica is the snapshot"
        assert len(once.pending) <= len(once.seen) <= room
        assert all(pending.due > once.now for pending in once.pending.values()), "what is due is published"
    assert [line.time for line in log] == sorted(line.time for line in log)


@settings(max_examples=200)
@given(steps=histories, duration=st.integers(1, 8))
def test_every_strict_event_that_is_published_stands_alone(steps, duration):
    once, now, events = gate(strict=True, duration=duration), 0, []
    for number, (wait, event) in enumerate(steps):
        now += wait
        events.append((now, event))
        once.submit(now, event, str(number))
    once.advance(now + duration)
    for at, event in published(once):
        others = [t for t, other in events if other == event and t != at]
        assert all(abs(at - t) >= duration for t in others)
        assert events.count((at, event)) == 1


# -- single rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_exactly_the_duration_apart_is_no_conflict(strict):
    once = gate(strict=strict)
    assert once.submit(0, "a", "1").accepted
    assert once.submit(3, "a", "2").accepted
    assert once.status(3, "1") == PUBLISHED


def test_an_event_that_was_due_is_published_also_when_a_repeat_notices_it_late():
    once = gate(strict=True)
    once.submit(0, "a", "1")
    assert once.submit(50, "a", "2").accepted
    assert [(line.status, line.id) for line in once.changes(0)] == [
        (SUBMITTED, "1"),
        (PUBLISHED, "1"),
        (SUBMITTED, "2"),
    ]


def test_what_is_due_together_is_published_in_the_order_of_submission():
    once = gate(strict=True)
    for number, event in enumerate("cab"):
        once.submit(0, event, str(number))
    once.advance(3)
    assert [line.event for line in once.changes(3)] == ["c", "a", "b"]


def test_a_retried_submission_neither_repeats_nor_extends():
    once = gate(strict=True)
    once.submit(0, "a", "1")
    for at in (1, 2):
        assert once.submit(at, "a", "1").accepted
    once.advance(3)
    assert once.status(3, "1") == PUBLISHED
    rejected = once.submit(4, "b", "2"), once.submit(5, "b", "3"), once.submit(7, "b", "3")
    assert [answer.accepted for answer in rejected] == [True, False, False]
    assert rejected[1] == rejected[2]
    assert once.submit(8, "b", "4").accepted, "the retry at 7 did not count"


def test_an_id_belongs_to_one_event():
    once = gate(strict=False)
    once.submit(0, "a", "1")
    with pytest.raises(IdReused) as caught:
        once.submit(0, "b", "1")
    assert (caught.value.id, caught.value.event, caught.value.asked) == ("1", "a", "b")
    assert once.clock == 2
    assert once.submit(0, "b", "2").accepted


def test_a_full_gate_refuses_and_changes_nothing():
    once = gate(strict=True, room=2)
    once.submit(0, "a", "1")
    once.submit(1, "b", "2")
    with pytest.raises(GateFull) as caught:
        once.submit(2, "c", "3")
    assert caught.value.retry_after == pytest.approx(1e-9)
    assert (once.clock, once.status(2, "3")) == (2, None)
    assert not once.submit(2, "a", "4").accepted, "what is known already needs no room"
    assert once.submit(4, "c", "3").accepted, "a refused id may be used again"


def test_a_conflict_names_the_event_that_it_repeats():
    once = gate(strict=True)
    once.submit(0, "a", "1")
    assert once.submit(1, "a", "2").conflict == "1"
    assert once.submit(2, "a", "3").conflict == "2", "a rejected event counts too"


def test_old_lines_and_answers_are_forgotten_and_never_hidden():
    once = gate(strict=True, retention=10)
    once.submit(0, "a", "1")
    once.submit(20, "b", "2")
    assert once.changes(0) is None
    assert [line.clock for line in once.changes(1)] == [2, 3], "published when it was noticed"
    assert once.status(20, "1") is None
    assert once.status(20, "2") == SUBMITTED


def test_what_is_pending_is_known_for_longer_than_the_retention():
    once = gate(strict=True, duration=100, retention=1)
    once.submit(0, "a", "1")
    assert once.status(99, "1") == SUBMITTED
    assert once.snapshot(99).pending[0].due == 100


def test_nothing_is_left_behind():
    once = gate(strict=True, retention=5)
    for number in range(50):
        once.submit(number, f"event {number}", str(number))
    once.advance(1000)
    once.advance(1006)
    assert not any((once.pending, once.seen, once.log, once.answers))
    assert once.next_due() is None


def test_the_table_is_the_code():
    """Each row of the table happens, and nothing else."""
    happened = set()
    for strict in (False, True):
        once = gate(strict=strict)
        for number, (at, event) in enumerate(SEED):
            once.submit(at, event, str(number))
        once.advance(100)
        state = {}
        for line in once.changes(0):
            happened.add((state.get(line.id), line.status, "strict" if strict else "only"))
            state[line.id] = line.status
    stated = set()
    for before, _, after, mode in TRANSITIONS:
        stated |= {(before, after, each) for each in (("only", "strict") if mode == "both" else (mode,))}
    assert happened == stated


def test_the_page_shows_the_transitions_of_the_core():
    page = Path(__file__).parents[2] / "docs" / "once.md"
    rows = [
        f"| {'(none)' if before is None else f'`{before.name}`'} | {what} | `{after.name}` | {mode} |"
        for before, what, after, mode in TRANSITIONS
    ]
    assert "\n".join(rows) + "\n\n" in page.read_text(encoding="utf-8")
