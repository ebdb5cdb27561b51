"""What goes wrong between a process and its service: no grant is forgotten, and nothing counts twice."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.redis.servers import Proxy
from tests.service.processes import Process, served
from tests.service.serving import serving_on

from headway import EngineUnavailable, Limiter, Once, PermitExpired, RateLimited, Remote, Window
from headway.limiter.promises import hand_over, redeem
from waiting import NEVER, wait_until

pytestmark = pytest.mark.realtime

_numbers = itertools.count()


@pytest.fixture
def folder(tmp_path):
    """Short enough for a unix socket."""
    return tmp_path


@pytest.fixture
def make():
    """make(limit, uri, **options): a limiter with a name of its own."""
    made = []

    def make(limit, uri, **options):
        options = {"name": f"faults {next(_numbers)}", "engine_timeout": 10, **options}
        made.append(Limiter(limit, engine=uri, **options))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


class Load:
    """Threads that take permits until they are stopped, whatever happens to the server."""

    def __init__(self, limiter, threads=3):
        self.limiter = limiter
        self.stamps: list[float] = []
        self.denied = self.away = 0
        self.last: Exception | None = None
        self.stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self):
        while not self.stopped.is_set():
            try:
                with self.limiter.hold(timeout=1):
                    self.stamps.append(time.monotonic())
            except RateLimited:
                self.denied += 1
            except (EngineUnavailable, PermitExpired) as error:  # its server was killed before it was spent
                self.away += 1
                self.last = error
                time.sleep(0.02)

    @property
    def granted(self):
        return len(self.stamps)

    def stop(self):
        self.stopped.set()
        for thread in self._threads:
            thread.join(NEVER)
        assert not any(thread.is_alive() for thread in self._threads)


def most_within(stamps, seconds):
    """The most in any window, wherever it starts."""
    stamps = sorted(stamps)
    first = most = 0
    for last, at in enumerate(stamps):
        while at - stamps[first] >= seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


# -- kills -------------------------------------------------------------------------------------------------------


def test_a_server_killed_under_load_and_started_again_forgets_no_grant(folder, make):
    engine = ("--engine", f"embedded://{folder}/ledgers?lease=1")
    limit = Window(20, per=0.5, remote=Remote(resolution=0, max_transit=0.3))
    with served(folder, "", *engine) as first:
        load = Load(make(limit, f"{first.url}?lease=1"))
        try:
            wait_until(lambda: load.granted > 60, "grants before the kill")
            assert first.end(signal.SIGKILL) == -signal.SIGKILL
            before = load.granted
            again = Process(
                "--config", str(first.file), *engine, "--port", str(first.client.port), folder=folder
            )
            try:
                wait_until(lambda: load.granted > before + 60, "its clients go on by themselves")
            finally:
                load.stop()
                again.end()
        finally:
            load.stop()
    assert most_within(load.stamps, 0.5) <= 20


def test_a_total_is_kept_across_a_kill(folder, make):
    engine = ("--engine", f"embedded://{folder}/ledgers")
    with served(folder, "", *engine) as first:
        limiter = make(Window(300, per=3600, remote=False), first.url)
        load = Load(limiter)
        try:
            wait_until(lambda: load.granted > 60, "grants before the kill")
            first.end(signal.SIGKILL)
            assert load.granted < 300
            again = Process(
                "--config", str(first.file), *engine, "--port", str(first.client.port), folder=folder
            )
            try:
                wait_until(lambda: load.denied > 2, "the limit is reached")
                load.stop()
                assert limiter.peek().remaining == 0
            finally:
                load.stop()
                again.end()
        finally:
            load.stop()
    # Each thread may have had one grant under way that it never heard of.
    assert 300 - 3 <= load.granted <= 300


def test_of_two_servers_on_one_engine_one_is_killed(folder, make):
    engine = ("--engine", f"embedded://{folder}/shared")
    with served(folder, "", *engine) as first:
        second = Process("--config", str(first.file), *engine, folder=folder)
        uri = f"http://127.0.0.1:{first.client.port},127.0.0.1:{second.client.port}"
        load = Load(make(Window(400, per=3600, remote=False), uri))
        try:
            wait_until(lambda: load.granted > 60, "grants of the first")
            first.end(signal.SIGKILL)
            wait_until(lambda: load.denied > 2, "the limit is reached")
        finally:
            load.stop()
            second.end()
    assert 400 - 3 <= load.granted <= 400
    assert load.away == 0, "the other server was asked at once"


def test_a_waiter_waits_on_when_its_server_is_started_again(folder, make):
    uri = f"embedded://{folder}/ledgers?lease=1"  # after which a dead process loses its place in the queue
    with served(folder, "", "--engine", uri) as first:
        beside = make("1 concurrent", uri, name="shared by name")
        held = beside.acquire()
        there = make("1 concurrent", first.url, name="shared by name")
        got: list[Any] = []
        waiter = threading.Thread(target=lambda: got.append(there.acquire(timeout=NEVER)))
        waiter.start()
        wait_until(
            lambda: there.stats().waiting == beside.peek().waiting == 1, "it stands in the ledger's queue"
        )
        first.end(signal.SIGKILL)
        again = Process(
            "--config", str(first.file), "--engine", uri, "--port", str(first.client.port), folder=folder
        )
        try:
            wait_until(lambda: len(sessions_of(there)) > 0, "a session with the new server")
            held.complete()
            waiter.join(NEVER)
            assert len(got) == 1
            got[0].complete()
        finally:
            again.end()


def sessions_of(limiter):
    channel = limiter._shared.ledgers.engine.channel
    return [channel.number] if channel.number > 1 and not channel.fresh else []


def test_a_client_that_is_killed_gives_its_place_back(folder, make):
    with serving_on(f"embedded://{folder}/ledgers?lease=60") as url:
        script = """
import sys, time
from headway import Limiter
permit = Limiter("1 concurrent", name="killed", engine=sys.argv[1], engine_timeout=10).acquire()
print("held", flush=True)
time.sleep(600)
"""
        client: Any = subprocess.Popen(
            [sys.executable, "-c", script, f"{url}?lease=1"], stdout=subprocess.PIPE, text=True
        )
        limiter = make("1 concurrent", url, name="killed")
        try:
            assert client.stdout.readline() == "held\n"
            assert not limiter.try_acquire()
            time.sleep(1.5)
            assert not limiter.try_acquire(), "a client that lives keeps it, whatever its lease"
        finally:
            client.kill()
            client.wait(NEVER)
            client.stdout.close()
        limiter.acquire(timeout=NEVER).complete()


def test_a_server_that_ends_sends_waiters_away_and_lets_permits_be_ended(folder, make):
    engine = f"embedded://{folder}/ledgers?lease=60"
    with served(folder, "[server]\ndrain = 30\n", "--engine", engine) as process:
        limiter = make("1 concurrent", process.url)
        held = limiter.acquire()
        heard: list[Any] = []

        def wait():
            try:
                limiter.acquire(timeout=NEVER)
            except EngineUnavailable as error:
                heard.append(str(error))

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: limiter.stats().waiting == 1, "it waits")
        process.child.send_signal(signal.SIGTERM)
        waiter.join(NEVER)
        assert "about to end" in heard[0]
        assert process.child.poll() is None, "it waits for the permit"
        held.complete()
        assert process.child.wait(NEVER) == 0
        process.forget()
        beside = make("1 concurrent", engine, name=limiter.name)
        assert beside.peek().in_flight == 0, "the end has reached the ledger"


# -- cuts --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cut(folder):
    """A service behind a wire that can be cut."""
    with serving_on(f"embedded://{folder}/ledgers") as url:
        wire = Proxy(SimpleNamespace(socket_path=None, port=int(url.rpartition(":")[2])))
        try:
            yield f"http://127.0.0.1:{wire.port}", wire
        finally:
            wire.close()


def test_a_command_whose_answer_is_lost_counts_once(cut, make):
    uri, wire = cut
    limiter = make("1000/hour", uri)
    for number in range(8):
        wire.drop_answers(1, only=b"POST /V1/ENGINE")
        assert limiter.try_acquire()
        assert wire.dropped == number + 1
    assert limiter.peek().remaining == 1000 - 8
    wire.heal()


def test_ends_whose_answers_are_lost_count_once(cut, make):
    uri, wire = cut
    limiter = make("5 concurrent", uri)
    for _ in range(4):
        permits = [limiter.acquire() for _ in range(5)]
        wire.drop_answers(2, only=b"POST /V1/ENGINE")
        for permit in permits:
            permit.complete()
        wait_until(lambda: limiter.peek().in_flight == 0, "all of them")
        assert limiter.peek().remaining == 5
    wire.heal()


def test_a_waiter_is_told_although_its_connections_were_cut(cut, make):
    uri, wire = cut
    limiter = make("1 concurrent", uri)
    for _ in range(3):
        held = limiter.acquire()
        got: list[Any] = []
        waiter = threading.Thread(target=lambda got=got: got.append(limiter.acquire(timeout=NEVER)))
        waiter.start()
        wait_until(lambda: limiter.peek().waiting == 1, "it waits")
        wire.cut()
        held.complete()
        waiter.join(NEVER)
        got[0].complete()


def test_a_server_that_hangs_is_a_time_out_and_what_was_granted_late_goes_back(cut, make):
    uri, wire = cut
    limiter = make(Window(10, per=3600, remote=False), uri, engine_timeout=0.3)
    limiter.acquire()
    wire.stall()
    with pytest.raises(EngineUnavailable, match=r"no answer within 0\.3 s"):
        limiter.try_acquire()
    wire.heal()
    patient = make(Window(10, per=3600, remote=False), uri, name=limiter.name)
    wait_until(lambda: patient.peek().remaining == 9, "the late grant goes back")


# -- no server ---------------------------------------------------------------------------------------------------


def test_without_a_server_a_call_fails_at_once_or_a_share_is_kept(make):
    uri = "http://127.0.0.1:1"
    limiter = make("10/hour", uri, engine_timeout=NEVER)
    begin = time.monotonic()
    with pytest.raises(EngineUnavailable, match="refused"):
        limiter.try_acquire()
    assert time.monotonic() - begin < NEVER / 2
    local = make("10/hour", uri, on_engine_error="local", local_share=0.2)
    assert [bool(local.try_acquire()) for _ in range(3)] == [True, True, False]
    gate = Once(60, name="nowhere", engine=uri, engine_timeout=NEVER)
    with pytest.raises(EngineUnavailable):
        gate.submit("a")
    gate.close()


def test_the_first_message_of_a_session_is_heard_when_it_comes(folder, monkeypatch):
    """The listener begins before the server knows the session, and must not find that out at its next look."""
    monkeypatch.setattr("headway.engines.http.listener.LONGEST", 3600)
    with serving_on(f"embedded://{folder}/ledgers") as url:
        gate = Once("1h", name="first", engine=url, engine_timeout=10)
        subscription = gate.subscribe()
        first: Any = next(subscription)
        assert first.pending == ()
        seen: list[Any] = []
        reader = threading.Thread(target=lambda: seen.append(next(subscription)), daemon=True)
        reader.start()
        gate.submit("pizza")
        reader.join(NEVER)
        assert [change.event for change in seen] == ["pizza"]
        gate.close()


# -- processes ---------------------------------------------------------------------------------------------------


def test_a_forked_child_has_a_session_of_its_own(folder, make):
    with serving_on(f"embedded://{folder}/ledgers") as url:
        limiter = make("5 concurrent", url)
        with limiter.hold():
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    mine = limiter.acquire(timeout=NEVER)
                    if limiter.peek().in_flight == 2:
                        mine.complete()
                        wait_until(lambda: limiter.peek().in_flight == 1, "its end")
                        status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            assert limiter.peek().in_flight == 1
        wait_until(lambda: limiter.peek().in_flight == 0, "the parent's end")


CHILD = """
import multiprocessing
from headway import Limiter
limiter = Limiter("5 concurrent", name="children", engine={uri!r}, engine_timeout=10)
limiter.acquire().complete()  # the parent has a session before it forks
def work():
    limiter.acquire().complete()
children = [multiprocessing.get_context("fork").Process(target=work) for _ in range(3)]
for child in children:
    child.start()
for child in children:
    child.join()
"""


def test_a_child_of_multiprocessing_has_said_how_its_calls_ended(folder, make):
    """Which runs no atexit, and so would leave its places to the end of its session's lease."""
    with serving_on(f"embedded://{folder}/ledgers") as url:
        script = CHILD.format(uri=f"{url}?lease=3600")
        subprocess.run([sys.executable, "-c", script], check=True, timeout=NEVER)
        limiter = make("5 concurrent", url, name="children")
        wait_until(lambda: limiter.peek().in_flight == 0, "every end")


def test_a_promise_is_redeemed_by_another_client(folder, make):
    with serving_on(f"embedded://{folder}/ledgers") as url:
        limiter = make("2/s burst 1", url)
        limiter.acquire()
        permit = limiter.reserve()
        assert permit.delay > 0
        other = make("2/s burst 1", f"{url}?lease=6", name=limiter.name)
        redeemed = redeem(other, hand_over(permit))
        assert 0 < redeemed.delay <= 0.6
        with redeemed:
            pass


def test_tokens_are_borrowed_through_a_service(folder, make):
    with serving_on(f"embedded://{folder}/ledgers") as url:
        ours = [make("50/hour", f"{url}?lease={lease}", name="borrowed", prefetch=True) for lease in (5, 6)]
        # The first call finds nothing here, and waits for the first tokens.
        granted = sum(bool(limiter.acquire(timeout=NEVER)) for limiter in ours)
        granted += sum(bool(limiter.try_acquire()) for limiter in ours * 60)
        assert 2 <= granted <= 50
        assert sum(limiter.stats().calls for limiter in ours) < 60
        for limiter in ours:
            limiter.close()  # hands its tokens back
        assert make("50/hour", url, name="borrowed").peek().remaining >= 50 - granted
