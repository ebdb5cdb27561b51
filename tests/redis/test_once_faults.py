# mypy: disable-error-code="var-annotated"
"""Gates on servers that fail, and processes that are killed: each event ends once, and no gap is hidden."""

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import tempfile
import threading
import time

import pytest
from tests.redis.once_storm import check_law, storm
from tests.redis.servers import eventually

from headway import Change, ChangesGone, EngineUnavailable, EventStatus, GateFull, IdReused, Once, Snapshot
from headway.engines.redis.net.acl import acl_line
from waiting import NEVER

pytestmark = pytest.mark.realtime

ROUNDS = int(os.environ.get("HEADWAY_ONCE_ROUNDS", "3"))
"""Of half a second; in each a process is killed, and in the first and every fourth the server."""

REJECTED, SUBMITTED, INVALIDATED, PUBLISHED = EventStatus


@pytest.fixture
def open_gate(name):
    """open_gate(url, duration, mode, **options): all of one test have one name."""
    made = []

    def open_gate(url, *args, **options):
        made.append(Once(*args, **{"name": name, "engine": url, "engine_timeout": 2, **options}))
        return made[-1]

    yield open_gate
    for gate in made:
        gate.close()


class Reader:
    """A thread that follows a gate, through every outage, and keeps what it saw."""

    def __init__(self, gate, since=0):
        self.found, self.errors = [], []
        self.subscription = gate.subscribe(since)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        while not self.subscription.closed:
            try:
                self.found.extend(iter(self._one, None))
            except EngineUnavailable as error:
                self.errors.append(error)
                time.sleep(0.05)

    def _one(self):
        return next(self.subscription, None)

    def wait(self, holds, what="the changes are there"):
        eventually(lambda: holds(self.found), what)
        return self.found

    def close(self):
        self.subscription.close()
        self.thread.join(NEVER)
        assert not self.thread.is_alive()


# -- processes ---------------------------------------------------------------------------------------------


def test_an_event_outlives_the_process_that_accepted_it(crew, valkey, open_gate):
    worker = crew.start(
        valkey.url,
        f"""
gate = Once(1, "strict", name={crew.name!r}, engine={valkey.url!r}, engine_timeout=2)
say(gate.submit("a").id)
time.sleep(100)
""",
    )
    id = worker.hear()
    worker.kill()
    gates = [open_gate(valkey.url, 1, "strict", name=crew.name) for _ in range(3)]
    readers = [Reader(gate) for gate in gates]
    for reader in readers:
        found = reader.wait(lambda found: len(found) == 2)
        assert [(change.status, change.id) for change in found] == [(SUBMITTED, id), (PUBLISHED, id)]
    time.sleep(0.1)
    assert len(gates[0].changes()) == 2
    for reader in readers:
        reader.close()


def test_the_law_holds_while_processes_are_killed_and_the_server_restarts(make_server):
    """For a long one: python -m tests.redis.once_storm --seconds 60."""
    outcome = storm(make_server(appendonly="yes", appendfsync="always"), ROUNDS * 0.5, seed=1, workers=3)
    assert outcome.kills >= 1
    assert outcome.restarts >= 1
    assert outcome.accepted > 20
    assert outcome.compared > 20


def test_parent_and_forked_child_both_submit_and_follow(crew, valkey):
    worker = crew.start(
        valkey.url,
        f"""
import warnings
warnings.simplefilter("ignore", ResourceWarning)
gate = Once(3600, name={crew.name!r}, engine={valkey.url!r}, engine_timeout=2)
subscription = gate.subscribe(0)
gate.submit("before")
first = next(subscription)
waiting = threading.Thread(target=lambda: [next(subscription) for _ in range(5)])
waiting.start()
while not gate.submit("again"): pass
pid = os.fork()
if pid == 0:
    assert gate.submit("before").conflict
    assert gate.submit("child")
    mine = gate.subscribe(0)
    clocks = [next(mine).clock for _ in range(6)]
    asyncio.run(gate.submit_async("task"))
    clocks.append(next(mine).clock)
    os._exit(0 if clocks == list(range(1, 8)) else 1)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
waiting.join(20)
say(code, waiting.is_alive(), [change.clock for change in gate.changes()])
""",
    )
    assert worker.hear() == "0 False [1, 2, 3, 4, 5, 6, 7, 8]"


@pytest.mark.usefixtures("_wheel")
def test_a_directory_keeps_a_gate_when_all_processes_have_gone(crew):
    """The process that started the server submits and is killed; the next one finds the event and publishes it."""
    folder = tempfile.mkdtemp(prefix="headway-")  # pytest's own are too long for a unix socket
    url = f"embedded://{folder}/gates"
    opened = f'gate = Once(1, "strict", name="all", engine={url!r}, engine_timeout=5)\n'
    try:
        worker = crew.start(url, opened + 'say(gate.submit("a").id)\ntime.sleep(100)')
        id = worker.hear()
        worker.kill()
        follow = "changes = gate.subscribe(0)\nfirst, second = next(changes), next(changes)\n"
        worker = crew.start(
            url, opened + follow + "say(first.id, second.id, second.status.name, second.clock)"
        )
        assert worker.hear() == f"{id} {id} PUBLISHED 2"
        worker.join()
        worker = crew.start(url, opened + f"say(gate.status({id!r}).name, gate.snapshot().clock)")
        assert worker.hear() == "PUBLISHED 2"
        worker.join()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- servers -----------------------------------------------------------------------------------------------


def test_a_restart_with_the_file_keeps_pending_events_and_answers(make_server, open_gate):
    server = make_server(appendonly="yes", appendfsync="always")
    gate = open_gate(server.url, 1, "strict")
    first = gate.submit("a", id="1", value="v")
    reader = Reader(gate)
    reader.wait(lambda found: len(found) == 1)
    server.kill()
    with pytest.raises(EngineUnavailable):
        gate.submit("b")
    server.restart()
    assert gate.submit("a", id="1", value="v") == first
    reader.wait(lambda found: len(found) == 2)
    reader.close()
    assert [(change.clock, change.status) for change in reader.found] == [(1, SUBMITTED), (2, PUBLISHED)]
    assert reader.errors, "a subscriber learns that the server is away"
    assert all(isinstance(error, EngineUnavailable) for error in reader.errors)


def test_a_gate_that_was_lost_begins_anew_and_its_subscribers_know(make_server, open_gate):
    server = make_server()
    gate = open_gate(server.url, 3600)
    gate.submit("a")
    reader = Reader(gate)
    before = reader.wait(lambda found: len(found) == 2)[-1]
    server.kill()
    server.restart()
    gate.submit("b")
    frame, *changes = reader.wait(lambda found: len(found) == 5)[2:]
    reader.close()
    assert isinstance(frame, Snapshot)
    assert (frame.clock, frame.pending) == (0, ())
    assert [(change.clock, change.event) for change in changes] == [(1, "b"), (2, "b")]
    assert frame.began > before.began
    assert isinstance(next(gate.subscribe(before)), Snapshot), "the change itself tells which gate it is of"
    assert isinstance(next(gate.subscribe(1)), Change), "a bare number cannot"


def test_lines_that_a_server_has_forgotten_and_written_anew_are_noticed(make_server, open_gate):
    """The server comes back as it was some lines ago, as a replica that was promoted does."""
    server = make_server()
    gate = open_gate(server.url, 3600)
    gate.submit("a")
    server.client().save()
    gate.submit("b")
    reader = Reader(gate)
    last = reader.wait(lambda found: len(found) == 4)[-1]
    server.kill()
    server.restart()
    for event in "cd":
        gate.submit(event)
    frame = reader.wait(lambda found: len(found) >= 5)[4]
    reader.close()
    assert isinstance(frame, Snapshot)
    assert frame.clock in (2, 4, 6)
    assert isinstance(next(gate.subscribe(last)), Snapshot)
    clocks = [change.clock for change in reader.found[5:]]
    assert clocks == list(range(frame.clock + 1, frame.clock + 1 + len(clocks)))


def test_a_subscriber_that_looks_only_after_the_loss_notices_it_too(make_server, open_gate):
    server = make_server()
    gate = open_gate(server.url, 3600)
    gate.submit("a")
    server.client().save()
    gate.submit("b")
    slow, reader = gate.subscribe(0), Reader(gate)  # the reader keeps the listener busy
    assert [next(slow).clock for _ in range(4)] == [1, 2, 3, 4]
    reader.wait(lambda found: len(found) == 4)
    server.kill()
    server.restart()
    reader.wait(lambda found: len(found) == 5)
    (tail,) = gate._gate.engine.gates.tails.values()
    eventually(lambda: tail.live, "the listener is back")
    for event in "cd":
        gate.submit(event)
    reader.wait(lambda found: len(found) == 9)
    reader.close()
    assert isinstance(next(slow), Snapshot)


@pytest.mark.parametrize("resumes", [False, True], ids=["waits", "resumes"])
def test_a_key_frame_whose_lines_a_server_has_forgotten_is_followed_by_another(
    make_server, open_gate, resumes
):
    """Also where no change was handed out since, and the clock is beyond the key frame again."""
    server = make_server()
    gate = open_gate(server.url, 3600)
    gate.submit("a")
    server.client().save()
    gate.submit("b")
    subscription = gate.subscribe()
    frame = next(subscription)
    assert frame.clock == 4
    server.kill()
    server.restart()
    for event in "cd":
        eventually(lambda event=event: _works(gate, event), "it answers again")
    if resumes:
        subscription = gate.subscribe(frame)
    again = next(subscription)
    assert isinstance(again, Snapshot)
    assert (again.clock, again.began) == (6, frame.began)


@pytest.mark.parametrize("part", [b"", b":d", b":s", b":l", b":i"])
def test_a_gate_of_which_a_part_was_evicted_begins_anew(valkey, open_gate, part):
    gate, client = open_gate(valkey.url, 0.2, "strict", retention=0), valkey.client()
    root = gate._gate.commands.root
    for event in "abb":
        gate.submit(event)
    before = gate.snapshot().began
    assert client.delete(root + part)
    time.sleep(0.25)  # what is missing is missed at the latest when time acts on it
    asyncio.run(gate.status_async("x"))
    with contextlib.suppress(ChangesGone):
        gate.changes()
    assert gate.submit("b")
    assert [change.clock for change in gate.changes()] == [1]
    (pending,) = gate.snapshot().pending
    assert pending.event == "b"
    assert gate.snapshot().began > before


def test_a_submit_whose_answer_was_lost_is_sent_again_and_counts_once(valkey, make_proxy, open_gate):
    proxy = make_proxy(valkey)
    gate = open_gate(proxy.url, 3600)
    gate.submit("warm")
    asyncio.run(gate.submit_async("warm too"))
    proxy.drop_answers(1, only=b"EVALSHA")
    assert gate.submit("a")
    assert proxy.dropped == 1
    proxy.drop_answers(1, only=b"EVALSHA")
    assert asyncio.run(gate.submit_async("b"))
    assert proxy.dropped == 2
    assert [change.event for change in gate.changes(4)] == ["a", "a", "b", "b"]


def test_a_server_that_is_away_or_stands_still_is_told_of(make_server, open_gate):
    server = make_server()
    gate = open_gate(server.url, 3600, engine_timeout=0.2)
    subscription = gate.subscribe()
    next(subscription)
    server.stop()
    for verb in (lambda: gate.submit("a"), gate.snapshot, lambda: asyncio.run(gate.submit_async("a"))):
        with pytest.raises(EngineUnavailable):
            verb()
    server.cont()
    eventually(lambda: _works(gate), "it answers again")
    found = list(itertools.islice(subscription, gate.snapshot().clock))
    assert [change.clock for change in found] == list(range(1, len(found) + 1))
    assert found[-1].event == "b"
    server.kill()
    with pytest.raises(EngineUnavailable):
        next(subscription)
    with pytest.raises(EngineUnavailable):
        gate.guard("c")(lambda: None)()


def test_each_gate_has_its_own_time_for_an_answer(make_server, open_gate):
    server = make_server()
    patient, hasty = (
        open_gate(server.url, 3600, engine_timeout=NEVER),
        open_gate(server.url, 3600, engine_timeout=0.1),
    )
    patient.submit("a")
    hasty.submit("b")
    server.stop()
    began = time.monotonic()
    for verb in (lambda: hasty.submit("c"), hasty.snapshot, lambda: asyncio.run(hasty.submit_async("c"))):
        with pytest.raises(EngineUnavailable):
            verb()
    assert time.monotonic() - began < NEVER / 2
    server.cont()
    assert patient.submit("d")


def _works(gate, event="b"):
    try:
        gate.submit(event)
    except EngineUnavailable:
        return False
    return True


def test_a_connection_that_is_cut_loses_nothing(valkey, make_proxy, open_gate):
    proxy = make_proxy(valkey)
    near, far = open_gate(valkey.url, 3600), open_gate(proxy.url, 3600)
    reader = Reader(far)
    for number in range(30):
        near.submit(str(number))
        if number % 10 == 5:
            proxy.cut()
        time.sleep(0.02)
    reader.wait(lambda found: len(found) >= 60)
    reader.close()
    assert reader.found == near.changes()


def test_a_user_that_may_neither_publish_nor_subscribe_looks_instead(valkey, open_gate):
    admin = valkey.client()
    admin.execute_command("ACL SETUSER mute on >secret ~* +@all resetchannels")
    url = f"redis://mute:secret@{valkey.url.partition('://')[2]}"
    gate = open_gate(url, 0.2, "strict")
    reader = Reader(gate)
    gate.submit("a")
    reader.wait(lambda found: [change.status for change in found] == [SUBMITTED, PUBLISHED])
    reader.close()
    gate.close()
    admin.acl_deluser("mute")


def test_the_rights_that_the_page_names_are_enough(valkey, open_gate):
    admin = valkey.client()
    admin.execute_command(acl_line("limits", "secret"))
    check_gate(open_gate, f"redis://limits:secret@{valkey.url.partition('://')[2]}")
    refused = {entry["object"] for entry in admin.acl_log() if entry["username"] == "limits"}
    assert refused <= {"client|setinfo"}, "which redis-py sends, and does without"
    admin.acl_deluser("limits")


# -- what it costs -----------------------------------------------------------------------------------------


def scripts_run(client):
    return client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def test_changes_are_pushed_and_subscribers_do_not_poll(valkey, open_gate):
    gate, client = open_gate(valkey.url, 3600), valkey.client()
    readers = [Reader(gate) for _ in range(20)]
    gate.submit("first")
    for reader in readers:
        reader.wait(lambda found: len(found) == 2)
    time.sleep(0.3)
    before = scripts_run(client)
    time.sleep(1.5)
    assert scripts_run(client) == before, "nothing happens, and nothing is asked"
    for number in range(50):
        gate.submit(str(number))
    for reader in readers:
        reader.wait(lambda found: len(found) == 102)
        reader.close()
    # If each reader asked for each change, it would be 1,050. A listener that had no core for a second takes a message
    # for lost and begins anew, for which each reader asks once.
    assert scripts_run(client) - before <= 50 + 10 * len(readers), "one message serves all"


def test_events_of_many_tasks_travel_together(valkey, open_gate):
    gate, client = open_gate(valkey.url, 3600), valkey.client()
    gate.submit("first")
    before = scripts_run(client)

    async def main():
        events = [str(number % 150) for number in range(200)]
        return await asyncio.gather(*[gate.submit_async(event, id=f"{i}") for i, event in enumerate(events)])

    answers = asyncio.run(main())
    assert scripts_run(client) - before <= 6
    assert [bool(answer) for answer in answers] == [True] * 150 + [False] * 50
    assert [answer.conflict for answer in answers[150:]] == [str(number) for number in range(50)]


def test_tasks_that_submit_together_fail_each_on_its_own(valkey, open_gate, make_proxy):
    proxy = make_proxy(valkey)
    gate = open_gate(proxy.url, 3600, max_pending=3, engine_timeout=0.3)

    async def submit(*ids):
        calls = [gate.submit_async(f"event {id}", id=id) for id in ids]
        return await asyncio.gather(*calls, return_exceptions=True)

    async def main():
        first = await submit("1", "2", "3", "4", "1")
        gone = asyncio.create_task(gate.submit_async("event 1"))
        await asyncio.sleep(0)
        gone.cancel()
        again = asyncio.gather(gate.submit_async("other", id="1"), submit("2"), return_exceptions=True)
        reused = await again
        proxy.refuse()
        return first, reused, await submit("5", "6")

    first, (reused, (second,)), lost = asyncio.run(main())
    assert [bool(answer) for answer in first[:3]] == [True] * 3
    assert isinstance(first[3], GateFull)
    assert first[4] == first[0]
    assert isinstance(reused, IdReused)
    assert second == first[1]
    assert [type(error) for error in lost] == [EngineUnavailable] * 2
    assert lost[0] is not lost[1]


def test_a_tail_that_is_too_short_is_filled_up_from_the_server(valkey, open_gate, monkeypatch):
    from headway.engines.redis.gates import listener

    monkeypatch.setattr(listener, "MOST_LINES", 8)
    gate = open_gate(valkey.url, 3600)
    subscription = gate.subscribe(0)
    gate.submit("first")
    found = [next(subscription)]
    for number in range(40):
        gate.submit(str(number))
    found += itertools.islice(subscription, 81)
    assert found == gate.changes()


def test_many_events_that_are_due_at_once_are_published_and_pushed(valkey, open_gate):
    gate = open_gate(valkey.url, 0.5, "strict")
    reader = Reader(gate)
    for number in range(300):
        gate.submit(str(number))
    reader.wait(lambda found: len(found) == 600)
    reader.close()
    check_law(reader.found)


def test_a_crowd_that_is_due_at_once_does_not_hold_the_server_up(valkey, open_gate):
    """A command publishes a thousand at most; an event that is due counts as published all the same."""
    gate = open_gate(valkey.url, 60, "strict", max_pending=3000)
    engine = gate._gate.engine
    engine.fixed_time = 2e15

    async def submit(count):
        await asyncio.gather(*[gate.submit_async(str(number), id=str(number)) for number in range(count)])

    try:
        asyncio.run(submit(3000))
        engine.fixed_time += 60e6
        assert gate.status("0") is PUBLISHED
        assert gate._gate.news(0) is None
        assert gate._gate.changes(0).clock == 5000, "a thousand by each command"
        again = gate.submit("2999")
        assert again.accepted
        assert again.clock == 6001, "all that was due comes before it"
        assert gate.status("2999") is PUBLISHED
        changes = gate.changes(3000)
        assert [change.id for change in changes[:3000]] == [str(number) for number in range(3000)]
        engine.fixed_time += 59e6
        assert not gate.submit("2999").accepted
        engine.fixed_time += 3e6
        assert gate.submit("a").accepted
    finally:
        engine.fixed_time = 0.0


@pytest.mark.parametrize("task", [False, True], ids=["thread", "task"])
def test_a_submit_that_depends_on_what_is_left_to_do_goes_on_until_that_is_done(valkey, open_gate, task):
    """An equal event is due, and three commands publish all that comes before it."""
    gate, client = open_gate(valkey.url, 60, "strict", max_pending=3000), valkey.client()
    engine = gate._gate.engine
    engine.fixed_time = 2e15

    async def fill():
        await asyncio.gather(*[gate.submit_async(str(number)) for number in range(3000)])

    try:
        asyncio.run(fill())
        engine.fixed_time += 60e6
        before = scripts_run(client)
        answer = asyncio.run(gate.submit_async("2999")) if task else gate.submit("2999")
        assert (answer.accepted, answer.clock) == (True, 6001)
        assert 3 <= scripts_run(client) - before <= 4
        assert [one.event for one in gate.snapshot().pending] == ["2999"]
    finally:
        engine.fixed_time = 0.0


def test_a_snapshot_that_is_read_in_parts_is_that_of_one_moment(valkey, open_gate, monkeypatch):
    from headway.engines.redis.gates import gate as gates

    monkeypatch.setattr(gates, "EVENTS", 2)
    gate = open_gate(valkey.url, 60, "strict")
    commands = gate._gate.commands
    for number in range(7):
        gate.submit(str(number))
    meanwhile = iter("07513")

    def read():
        """As the gate does it; between two parts one event is invalidated that was read or will be, and 7 is new."""
        parts = gate._gate._snapshot()
        words = next(parts)
        while True:
            answer = commands.send(commands.payload(*words))
            event = next(meanwhile, None)
            if event is not None:
                gate.submit(event)
            try:
                words = parts.send(answer)
            except StopIteration as end:
                return end.value

    view = read()
    ended = {change.event for change in gate.changes() if change.status == INVALIDATED}
    pending = [one.event for one in view.snapshot.pending]
    assert len(ended) >= 3
    lines = [change for change in gate.changes() if change.clock <= view.snapshot.clock]
    assert pending == [
        line.event
        for line in lines
        if line.status == SUBMITTED and (line.id, INVALIDATED) not in {(one.id, one.status) for one in lines}
    ]


def test_the_listener_ends_when_no_gate_is_watched(valkey, open_gate, monkeypatch):
    from headway.engines.redis.gates import listener

    monkeypatch.setattr(listener, "LINGER", 0.2)
    gate = open_gate(valkey.url, 3600)
    for _ in range(2):
        reader = Reader(gate, None)
        reader.wait(lambda found: len(found) == 1)
        eventually(lambda: valkey.client().pubsub_channels("*:once:*"), "it listens")
        reader.close()
        eventually(lambda: not valkey.client().pubsub_channels("*:once:*"), "it does not listen any more")
        names = [thread.name for thread in threading.enumerate()]
        eventually(lambda: "headway gates" not in [t.name for t in threading.enumerate()], str(names))


# -- other kinds of servers --------------------------------------------------------------------------------


def check_gate(open_gate, url):
    gate = open_gate(url, 2, "strict")  # longer than a busy machine takes for three events
    reader = Reader(gate)
    assert gate.submit("a")
    assert asyncio.run(gate.submit_async("b"))
    assert not gate.submit("a")
    found = reader.wait(lambda found: len(found) == 4)
    reader.close()
    assert [(c.status, c.event) for c in found] == [
        (SUBMITTED, "a"),
        (SUBMITTED, "b"),
        (INVALIDATED, "a"),
        (PUBLISHED, "b"),
    ]


def test_a_cluster(cluster, open_gate):
    for number in range(4):
        check_gate(lambda *args, number=number: open_gate(*args, name=f"gate {number}"), cluster.url)


def test_sentinels_and_a_failover(make_sentinels, open_gate):
    sentinels = make_sentinels(replicas=1)
    check_gate(open_gate, sentinels.url)
    gate = open_gate(sentinels.url, 2, "strict")
    reader = Reader(gate)
    reader.wait(lambda found: len(found) == 4)
    sentinels.failover()
    eventually(lambda: _works(gate), "the promoted replica answers")
    reader.wait(lambda found: found[-1].clock >= 6)
    reader.close()


def test_an_interrupt_ends_the_wait_of_a_subscriber(crew, valkey):
    worker = crew.start(
        valkey.url,
        f"""
gate = Once(3600, name={crew.name!r}, engine={valkey.url!r}, engine_timeout=2)
try:
    say("waiting")
    for change in gate.subscribe(0): pass
except KeyboardInterrupt:
    say("interrupted", gate.submit("a").accepted)
""",
    )
    worker.hear()
    time.sleep(0.3 + random.random() * 0.1)
    os.kill(worker.process.pid, signal.SIGINT)
    assert worker.hear() == "interrupted True"
    worker.join()
