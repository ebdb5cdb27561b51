# mypy: disable-error-code="var-annotated"
"""What a gate decides, and what it tells: the same on every engine, in virtual time."""

import pickle
import random
import threading

import pytest

from headway import (
    ChangesGone,
    EventStatus,
    GateClosed,
    GateFull,
    IdReused,
    InvalidArgument,
    LimitMismatch,
    Once,
    Submission,
)
from headway.errors import InvalidLimit

REJECTED, SUBMITTED, INVALIDATED, PUBLISHED = EventStatus
SEED = [(1, "pizza"), (2, "taco"), (3, "taco"), (4, "taco"), (7, "taco")]
NEVER = 30.0


def published(gate):
    return [change.event for change in gate.changes() if change.status == PUBLISHED]


@pytest.mark.parametrize(
    ("mode", "allowed", "order"),
    [
        ("only", {"1", "2", "7"}, ["1", "2", "7"]),
        ("strict", {"1", "2", "7"}, ["1", "7"]),
    ],
)
def test_the_examples_that_it_grew_from(timed_gate, call, mode, allowed, order):
    open_gate, set_time = timed_gate
    gate = open_gate(3, mode)
    accepted = set()
    for at, event in SEED:
        set_time(at)
        if call(gate.submit, event, id=str(at)):
            accepted.add(str(at))
    set_time(100)
    changes = call(gate.changes)
    assert accepted == allowed
    assert [change.id for change in changes if change.status == PUBLISHED] == order
    ends = {change.id: change.status for change in changes if change.status != SUBMITTED}
    assert ends == {id: PUBLISHED if id in order else INVALIDATED for id in allowed}
    assert [change.clock for change in changes] == list(range(1, len(changes) + 1))


def test_a_submission_says_when_it_is_due_and_what_it_repeats(timed_gate, call):
    open_gate, set_time = timed_gate
    gate = open_gate("3s", "strict")
    set_time(1)
    first = call(gate.submit, "taco", value="extra hot")
    assert first == Submission(True, first.id, 1, first.due, None)
    assert len(first.id) == 32
    (pending,) = call(gate.snapshot).pending
    assert (pending.event, pending.value, pending.clock, pending.id) == ("taco", "extra hot", 1, first.id)
    assert first.due == pending.due == pytest.approx(pending.time + 3, abs=1e-6)
    set_time(2)
    assert call(gate.submit, "taco", id="again") == Submission(False, "again", 2, None, first.id)
    assert call(gate.status, first.id) is INVALIDATED
    assert call(gate.status, "again") is REJECTED
    assert call(gate.status, "unknown") is None
    snapshot = call(gate.snapshot)
    assert (snapshot.clock, snapshot.pending) == (2, ())
    assert [change.value for change in call(gate.changes)] == ["extra hot", "extra hot"]


@pytest.mark.parametrize("mode", ["only", "strict"])
def test_exactly_the_duration_apart_is_no_conflict(timed_gate, mode):
    open_gate, set_time = timed_gate
    gate = open_gate(3, mode)
    assert gate.submit("a", id="first")
    set_time(3)
    assert gate.submit("a", id="second")
    assert gate.status("first") is PUBLISHED
    set_time(5.999999)
    assert not gate.submit("a", id="third")


def test_a_repetition_with_the_same_id_is_no_repeat(timed_gate, call):
    open_gate, set_time = timed_gate
    gate = open_gate(3, "strict")
    first = call(gate.submit, "a", id="1", value="v")
    set_time(1)
    assert call(gate.submit, "a", id="1", value="v") == first
    set_time(3)
    assert call(gate.status, "1") is PUBLISHED
    assert call(gate.submit, "a", id="1", value="v") == first
    with pytest.raises(IdReused) as error:
        call(gate.submit, "b", id="1")
    assert (error.value.id, error.value.event, error.value.asked) == ("1", "a", "b")
    assert [change.clock for change in call(gate.changes)] == [1, 2]


def test_a_full_gate_refuses_and_changes_nothing(timed_gate, call):
    open_gate, set_time = timed_gate
    gate = open_gate(3, "strict", max_pending=2)
    gate.submit("a")
    set_time(1)
    gate.submit("b")
    before = gate.snapshot()
    with pytest.raises(GateFull) as error:
        call(gate.submit, "c", id="c")
    assert (error.value.max_pending, error.value.retry_after) == (2, 2.0)
    assert str(error.value).startswith(
        "the gate holds 2 events already, which is its max_pending: try again in 2 s"
    )
    assert gate.snapshot() == before
    assert [change.clock for change in gate.changes()] == [1, 2]
    assert gate.status("c") is None
    assert not gate.submit("a"), "a repeat needs no room"
    set_time(4)
    assert gate.submit("c", id="c")


def test_changes_continue_and_a_gap_is_never_hidden(timed_gate, call):
    open_gate, set_time = timed_gate
    gate = open_gate(1, retention=10)
    for number in range(5):
        set_time(number)
        gate.submit("a")
    assert [change.clock for change in call(gate.changes, 7)] == [8, 9, 10]
    assert call(gate.changes, since=10) == []
    with pytest.raises(ChangesGone) as error:
        call(gate.changes, 11)
    assert (error.value.since, error.value.oldest) == (11, 0)
    assert str(error.value).startswith("the gate is at clock 10, and was not at 11")
    set_time(12)
    with pytest.raises(ChangesGone) as error:
        call(gate.changes)
    assert (error.value.since, error.value.oldest) == (0, 4)
    assert [change.clock for change in call(gate.changes, 4)] == [5, 6, 7, 8, 9, 10]


def test_a_long_log_and_a_crowd_of_pending_events_are_read_whole(timed_gate, call):
    open_gate, set_time = timed_gate
    gate = open_gate(3, "strict")
    events = [f"{number} ü" * 10 for number in range(1234)]
    for event in events:
        gate.submit(event)
    snapshot = call(gate.snapshot)
    assert snapshot.clock == len(events)
    assert [pending.event for pending in snapshot.pending] == events
    set_time(3)
    changes = call(gate.changes)
    assert [change.clock for change in changes] == list(range(1, 2 * len(events) + 1))
    assert [change.event for change in changes if change.status == PUBLISHED] == events
    for limit in (1, 200, 201, 2 * len(events)):
        assert call(gate.changes, 7, limit) == changes[7 : 7 + limit]


@pytest.mark.parametrize("event", ["", "\0", "ü\n=", "x" * 65536, "ü" * 32768, "{a}", " "])
def test_any_text_is_an_event_a_value_and_an_id(open_gate, call, event):
    gate = open_gate(3600)
    id = event[:500] or "empty"
    assert call(gate.submit, event, id=id, value=event)
    assert not call(gate.submit, event, id="other")
    change = call(gate.changes)[-1]
    assert (change.event, change.id, change.value) == (event, id, event)
    assert call(gate.status, id) is PUBLISHED


@pytest.mark.parametrize(
    ("verb", "arguments", "argument"),
    [
        ("submit", {"event": 7}, "event"),
        ("submit", {"event": None}, "event"),
        ("submit", {"event": b"bytes"}, "event"),
        ("submit", {"event": "x" * 65537}, "event"),
        ("submit", {"event": "ü" * 32769}, "event"),
        ("submit", {"event": "\ud800"}, "event"),
        ("submit", {"event": "a", "id": ""}, "id"),
        ("submit", {"event": "a", "id": 7}, "id"),
        ("submit", {"event": "a", "id": "x" * 1025}, "id"),
        ("submit", {"event": "a", "value": {}}, "value"),
        ("submit", {"event": "a", "value": "x" * 65537}, "value"),
        ("status", {"id": None}, "id"),
        ("changes", {"since": -1}, "since"),
        ("changes", {"since": "0"}, "since"),
        ("changes", {"limit": 0}, "limit"),
        ("changes", {"limit": "all"}, "limit"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(open_gate, call, verb, arguments, argument):
    gate = open_gate(3600)
    with pytest.raises(InvalidArgument) as error:
        call(getattr(gate, verb), **arguments)
    assert error.value.argument == argument
    assert str(error.value).startswith(f"{argument}=")
    assert "is not accepted; give " in str(error.value)
    assert len(str(error.value)) < 500
    assert (gate.snapshot().clock, gate.changes()) == (0, [])
    assert gate.submit("a", id="a"), "nothing is remembered of it"


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"duration": 0}, "duration"),
        ({"duration": -1}, "duration"),
        ({"duration": None}, "duration"),
        ({"duration": float("inf")}, "duration"),
        ({"mode": "twice"}, "mode"),
        ({"mode": None}, "mode"),
        ({"max_pending": 0}, "max_pending"),
        ({"max_pending": 1.5}, "max_pending"),
        ({"retention": -1}, "retention"),
        ({"retention": "soon"}, "retention"),
        ({"engine_timeout": 0}, "engine_timeout"),
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"engine": "nowhere://"}, "engine"),
    ],
)
def test_a_gate_that_cannot_be_is_refused(open_gate, options, argument):
    with pytest.raises(InvalidArgument) as error:
        open_gate(**{"duration": 3, **options})
    assert error.value.argument == argument


def test_a_duration_that_cannot_be_read_points_at_the_fault(open_gate):
    with pytest.raises(InvalidLimit, match="unknown unit"):
        open_gate("3 minuts")


@pytest.mark.parametrize(("duration", "mode"), [(4, "strict"), (3600, "only")])
def test_another_duration_or_mode_under_the_same_name_is_refused(open_gate, call, duration, mode):
    gate = open_gate(3600, "strict")
    gate.submit("a", id="a")
    before = gate.changes()
    verbs = {
        "submit": lambda other: call(other.submit, "b"),
        "repeat": lambda other: call(other.submit, "a"),
        "status": lambda other: call(other.status, "a"),
        "changes": lambda other: call(other.changes),
        "snapshot": lambda other: call(other.snapshot),
        "subscribe": lambda other: next(other.subscribe()),
        "guard": lambda other: other.guard("b")(lambda: None)(),
    }
    for verb, use in verbs.items():
        with pytest.raises(LimitMismatch) as error:
            use(open_gate(duration, mode))
        assert error.value.existing == "strict 1 hour", verb
        assert error.value.requested == f"{mode} {'4s' if duration == 4 else '1 hour'}", verb
        assert "use another name" in str(error.value)
    assert gate.changes() == before
    assert gate.snapshot().clock == 1
    assert gate.status("a") is SUBMITTED, "and it is still the gate that it was"
    assert not gate.submit("a")


def test_gates_of_one_name_are_one(open_gate):
    one, two, other = open_gate(3600), open_gate("1h"), open_gate(3600, name=f"another {random.random()}")
    assert one.submit("a", id="1")
    assert two.submit("a").conflict == "1"
    assert other.submit("a")
    assert one.changes() == two.changes()


def test_the_law_holds_for_many_threads(open_gate):
    """Clock values without gaps; one end for each event, after its beginning; what threads are told agrees with it."""
    gates = [open_gate(0.05, "strict"), open_gate(0.05, "strict")]
    answers, errors = [], []

    def work(seed):
        dice = random.Random(seed)
        try:
            for _ in range(40):
                answers.append(gates[seed % 2].submit(dice.choice("abcdefgh") * dice.randrange(1, 4)))
                if dice.random() < 0.2:
                    threading.Event().wait(dice.random() * 0.05)
        except BaseException as error:  # noqa: BLE001 - the test's own thread reports it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(NEVER)
    assert not errors
    threading.Event().wait(0.06)
    assert gates[0].snapshot().pending == ()
    check_law(gates[0].changes(), answers)


def check_law(changes, answers):
    assert [change.clock for change in changes] == list(range(1, len(changes) + 1))
    assert [change.time for change in changes] == sorted(change.time for change in changes)
    states = {}
    for change in changes:
        if change.status == SUBMITTED:
            assert change.id not in states
        else:
            assert states[change.id] == SUBMITTED, "one end, after its beginning"
        states[change.id] = change.status
    assert set(states.values()) <= {PUBLISHED, INVALIDATED}
    assert set(states) == {answer.id for answer in answers if answer.accepted}
    by_clock = {change.clock: change for change in changes}
    for answer in answers:
        if answer.accepted:
            assert by_clock[answer.clock].id == answer.id


def test_a_closed_gate_refuses_every_verb_and_others_go_on(open_gate, call):
    gate, other = open_gate(3600), open_gate(3600)
    gate.submit("a", id="1")
    call(gate.close)
    gate.close()
    for verb, arguments in [
        (gate.submit, ("b",)),
        (gate.status, ("1",)),
        (gate.changes, ()),
        (gate.snapshot, ()),
    ]:
        with pytest.raises(GateClosed):
            call(verb, *arguments)
    with pytest.raises(GateClosed):
        gate.subscribe()
    assert other.submit("a").conflict == "1"


def test_a_gate_says_what_it_is(open_gate, name, engine):
    gate = open_gate("5min", "strict")
    assert (gate.name, gate.duration, gate.mode) == (name, 300.0, "strict")
    assert repr(gate) == f"Once('5min', 'strict', name={name!r})"
    if engine.shared:
        gate.submit("a", id="1")
        copy = pickle.loads(pickle.dumps(gate))
        assert copy.submit("a").conflict == "1"
        copy.close()
    else:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(gate)


def test_a_shared_gate_needs_a_name(engine, uri):
    if engine.shared:
        with pytest.raises(InvalidArgument, match="name"):
            Once(3, engine=uri)
    else:
        one, two = Once(3), Once(3)
        assert one.submit("a")
        assert two.submit("a"), "each is its own"
