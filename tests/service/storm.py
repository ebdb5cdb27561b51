"""Servers that are killed with SIGKILL under load, and clients that go on by themselves.

    PYTHONPATH=tests python -m tests.service.storm --seconds 60 --seed 11

Half of the time it is one `headway serve` on `embedded://` that is killed and started again, half of the time two of
them on one Valkey, of which one at a time is killed. Threads take permits of four limits all the while, each on a
connection that it keeps, and go to the next server (or to the same one again) when theirs is gone.

A client knows when it asked and when it was answered: the grant was decided in between. So a limit is certainly broken
if more intervals than it permits lie whole within one window, and never else. Judged are:

    rate      "30/s", a sliding window: no window of a second has more than 30 whole intervals
    leased    the same with `prefetch`, where each server spends permits that it was lent; those of a server that was
              killed come back when their time (`ttl`) is over; without `remote = false`, also the 15 s for which a
              call may be on its way
    budget    a limit that is not reached: what remains in the end is what was not granted. An answer that was lost in a
              kill may or may not have been counted; a grant that was answered must have been
    places    "3 concurrent": no more than 3 are held at any moment, from the answer to the request that ends it

and that every client has got permits after every kill.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.redis.servers import Server, free_port
from tests.service.processes import Process

from waiting import NEVER, wait_until

RATE, PLACES, BUDGET = 30, 3, 1_000_000
CONFIG = f"""
[server]
drain = 0
[limits.rate]
limit = "{RATE}/s"
engine_timeout = 20
[limits.leased]
limit = "{RATE}/s"
prefetch = {{ ttl = 1 }}
remote = false
engine_timeout = 20
[limits.budget]
limit = "{BUDGET}/day"
engine_timeout = 20
[limits.places]
limit = "{PLACES} concurrent"
engine_timeout = 20
"""
CLIENTS = {"rate": 2, "leased": 2, "budget": 1, "places": 5}
LIMITS = tuple(CLIENTS)


class Grant(NamedTuple):
    """A permit: when it was asked for and when the answer was there; when it was ended, for a place."""

    asked: float
    answered: float
    ended: float = 0.0


class Client(threading.Thread):
    """Takes permits of one limit, whatever happens to the servers."""

    def __init__(self, limit, ports, dice):
        super().__init__(daemon=True)
        self.limit, self.dice = limit, dice
        self.ports = itertools.cycle(dice.sample(ports, len(ports)))
        self.grants: list[Grant] = []
        self.unknown = self.refused = self.denied = 0
        self.other: dict[int, int] = {}
        self.failure: BaseException | None = None
        self.stopped = threading.Event()
        self._connection: http.client.HTTPConnection | None = None

    def run(self):
        try:
            while not self.stopped.is_set():
                self._step()
        except BaseException as error:  # noqa: BLE001 - the storm's own thread reports it
            self.failure = error
        finally:
            self._leave()

    def _step(self):
        asked = time.monotonic()
        answer = self._post("/v1/acquire", {"limit": self.limit, "wait": self.dice.choice((0, 0, 0.5))})
        answered = time.monotonic()
        if answer is None:
            self.stopped.wait(0.02)
            return
        status, body = answer
        if status == 200:
            self.grants.append(Grant(asked, answered, self._use(body["permit"])))
        elif status == 429:
            self.denied += 1
            self.stopped.wait(self.dice.uniform(0, 0.05))
        else:
            self.other[status] = self.other.get(status, 0) + 1

    def _use(self, permit):
        """Hold a place for a while; when it was given back."""
        if permit is None:
            return 0.0
        time.sleep(self.dice.uniform(0, 0.1))
        ended = time.monotonic()
        # The server that has it may be gone, and then another one does not know it: the engine frees the place itself.
        self._post(f"/v1/permits/{permit}/release", {})
        return ended

    def _post(self, path, value):
        """The status and the body; None if there is no answer, and then the next server is asked."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", next(self.ports), timeout=NEVER)
            head = {"Content-Type": "application/json"}
            self._connection.request("POST", path, json.dumps(value), head)
            reply = self._connection.getresponse()
            return reply.status, json.loads(reply.read())
        except ConnectionRefusedError:
            self.refused += 1  # nothing was sent
        except (OSError, http.client.HTTPException):
            self.unknown += 1
        self._leave()
        return None

    def _leave(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass
class Outcome:
    """What a storm has shown. Whatever is against a limit has raised by then."""

    engine: str
    grants: dict[str, int] = field(default_factory=dict)
    fullest: dict[str, int] = field(default_factory=dict)
    denied: int = 0
    unknown: int = 0
    kills: int = 0

    def __str__(self):
        granted = ", ".join(f"{count} of {limit}" for limit, count in self.grants.items())
        fullest = ", ".join(f"{count} of {limit}" for limit, count in self.fullest.items())
        return (
            f"{self.engine}: {self.kills} servers killed; granted {granted}; {self.denied} denied, "
            f"{self.unknown} without an answer\n"
            f"  the most at once: {fullest}: no limit was broken, no grant forgotten, every client went on"
        )


def fullest_window(grants, seconds):
    """The most intervals that lie whole within one window of so many seconds.

    >>> fullest_window([Grant(0.0, 0.1), Grant(0.2, 0.9), Grant(0.5, 1.2)], 1.0)
    2
    """
    most = 0
    in_order = sorted(grants)
    for index, first in enumerate(in_order):
        end = first.asked + seconds
        inside = 0
        for grant in itertools.islice(in_order, index, None):
            if grant.asked >= end:
                break
            inside += grant.answered < end
        most = max(most, inside)
    return most


def most_held(grants):
    """The most places that were held at one moment.

    >>> most_held([Grant(0.0, 0.1, 0.5), Grant(0.0, 0.2, 0.4), Grant(0.3, 0.5, 0.6)])
    2
    """
    # At one and the same time ends come first.
    changes = [(grant.answered, 1) for grant in grants] + [(grant.ended, -1) for grant in grants]
    return max(itertools.accumulate(step for _, step in sorted(changes)), default=0)


class Fleet:
    """Servers on fixed ports, which can be killed and started again."""

    def __init__(self, folder, engine, count):
        self.folder, self.engine = folder, engine
        self.file = folder / "storm.toml"
        self.file.write_text(CONFIG)
        self.ports = [free_port() for _ in range(count)]
        self.processes = [self._start(port) for port in self.ports]

    def _start(self, port):
        words = ("--config", str(self.file), "--engine", self.engine, "--port", str(port))
        return Process(*words, folder=self.folder)

    def kill(self, index):
        process = self.processes[index]
        process.child.kill()
        process.child.wait(NEVER)
        process.forget()

    def start(self, index):
        self.processes[index] = self._start(self.ports[index])

    def close(self):
        for process in self.processes:
            if process.child.poll() is None:
                process.end()


def storm(folder, engine, count, seconds, seed):
    """Run it on an engine with so many servers; an `Outcome`, or an `AssertionError`."""
    dice = random.Random(seed)
    fleet = Fleet(folder, engine, count)
    clients = [
        Client(limit, fleet.ports, random.Random(dice.random()))
        for limit, many in CLIENTS.items()
        for _ in range(many)
    ]
    outcome = Outcome("one server on embedded://" if count == 1 else f"{count} servers on one Valkey")
    try:
        for client in clients:
            client.start()
        went_on(clients, "all have begun")
        end = time.monotonic() + seconds
        while time.monotonic() < end or not outcome.kills:
            time.sleep(dice.uniform(0.3, 1.5))
            victim = dice.randrange(count)
            fleet.kill(victim)
            outcome.kills += 1
            if count > 1:
                went_on(clients, "the other server goes on for all")
            fleet.start(victim)
            went_on(clients, "all go on after the restart")
        for client in clients:
            client.stopped.set()
        for client in clients:
            client.join(NEVER)
            assert not client.is_alive()
        judge(clients, fleet.processes[0], outcome)
    finally:
        for client in clients:
            client.stopped.set()
        for client in clients:
            client.join(NEVER)
        fleet.close()
    return outcome


def went_on(clients, what):
    """Every client gets a permit from now on."""
    before = [len(client.grants) for client in clients]

    def all_have():
        failures = [client.failure for client in clients if client.failure is not None]
        if failures:
            raise failures[0]
        return all(len(client.grants) > count for client, count in zip(clients, before, strict=True))

    wait_until(all_have, what, within=2 * NEVER)


def judge(clients, process, outcome):
    grants = {
        limit: [grant for one in clients if one.limit == limit for grant in one.grants] for limit in LIMITS
    }
    outcome.grants = {limit: len(found) for limit, found in grants.items()}
    outcome.denied = sum(client.denied for client in clients)
    outcome.unknown = sum(client.unknown for client in clients)
    for limit in ("rate", "leased"):
        outcome.fullest[limit] = fullest_window(grants[limit], 1.0)
        assert outcome.fullest[limit] <= RATE, f"{outcome.fullest[limit]} of {limit} within a second"
    outcome.fullest["places"] = most_held(grants["places"])
    assert outcome.fullest["places"] <= PLACES, f"{outcome.fullest['places']} places"
    left = process.client.get("/v1/limits/budget/status").body["status"]["remaining"]
    used, lost = BUDGET - left, sum(client.unknown for client in clients if client.limit == "budget")
    assert len(grants["budget"]) <= used, f"{len(grants['budget'])} were granted, and {used} are remembered"
    assert used <= len(grants["budget"]) + lost, (
        f"{used} are counted, and {len(grants['budget'])} were granted"
    )
    odd = {status for client in clients for status in client.other} - {503}
    assert not odd, f"answers with {odd}"


@contextlib.contextmanager
def on_embedded():
    with tempfile.TemporaryDirectory(prefix="headway-storm-") as folder:
        yield Path(folder), f"embedded://{folder}/engine", 1


@contextlib.contextmanager
def on_valkey():
    with tempfile.TemporaryDirectory(prefix="headway-storm-") as folder, Server("valkey") as server:
        yield Path(folder), server.url, 2


PLACES_TO_RUN = {"embedded": on_embedded, "valkey": on_valkey}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for place in PLACES_TO_RUN.values():
        with place() as (folder, engine, count):
            sys.stdout.write(f"{storm(folder, engine, count, options.seconds / 2, options.seed)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
