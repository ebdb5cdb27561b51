# mypy: disable-error-code="var-annotated"
"""Processes with borrowed tokens that are killed and stopped at random, and the audit of what they used.

    PYTHONPATH=tests python -m tests.redis.lease_storm --seconds 60 --seed 1

Four processes use a window that counts as its remote does, and a bucket, as fast as they may. One of them at a time is
killed and replaced, or stopped for up to three TTLs and continued. A use is written down with the time at which it
happened, which is before its holder knows that the lease was alive: a process that was stopped in between has not used
it. The last seconds are calm, and there the limits have to be used again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.redis.load import excess
from tests.redis.servers import Server
from tests.redis.workers import Crew, Use, most_in_any

from headway import Bucket, Remote, Window

TTL = 1.0
LIMITS = {
    "window": Window(50, per=1, remote=Remote(resolution=0, max_transit=0.3)),
    "bucket": Bucket("20/s", burst=10),
}

WORK = """
from headway.limiter.prefetch_options import Prefetch
record = os.open({record!r}, os.O_WRONLY | os.O_APPEND)
late = 0

def work(kind, limiter):
    global late
    while True:
        asked = time.monotonic()
        try:
            with limiter.hold(timeout=0.5) as permit:
                used = time.monotonic()
                permit.check()
                os.write(record, struct.pack("<ddd", kind, used, asked))
        except PermitExpired:
            late += 1
        except (EngineUnavailable, RateLimited):
            time.sleep(0.005)

for kind, limit in enumerate({limits!r}):
    limiter = make(limit, name="storm%d" % kind, prefetch=Prefetch(ttl={ttl}), remote=None)
    for _ in range(2):
        threading.Thread(target=work, args=(kind, limiter), daemon=True).start()
say("works")
while True: time.sleep(60)
"""


@dataclass
class Outcome:
    """What a storm has shown; `tail` is what was used in the calm seconds, of what the limit allows."""

    uses: dict[str, list[Use]]
    kills: int = 0
    stops: int = 0
    past: int = 0
    above: dict[str, float] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    tail: dict[str, float] = field(default_factory=dict)

    def __str__(self):
        rows = [f"{self.kills} killed, {self.stops} stopped, {self.past} of them for longer than a lease"]
        for kind, uses in self.uses.items():
            rows.append(
                f"{kind} {LIMITS[kind]}: {len(uses)} uses, at most {self.most[kind]} in any second, "
                f"{self.above[kind]:+.1f} against the limit; calm: {self.tail[kind]:.0%} of it"
            )
        return "\n".join(rows)


def storm(url, seconds, seed, *, workers=4, calm=6.0):
    """Run it against a server; an `Outcome`."""
    outcome = Outcome({kind: [] for kind in LIMITS})
    handle, record = tempfile.mkstemp(prefix="headway-storm-")
    os.close(handle)
    script = WORK.format(record=record, limits=list(LIMITS.values()), ttl=TTL)
    with contextlib.ExitStack() as stack:
        stack.callback(Path(record).unlink)
        crew = stack.enter_context(Crew())
        url += "?lease=0.5"  # how long a permit may be unspent, which the engine adds to a transit
        alive = [crew.start(url, script) for _ in range(workers)]
        for worker in alive:
            worker.hear()
        _rage(alive, partial(crew.start, url, script), seconds, random.Random(seed), outcome)
        # The tokens of those that were killed last come back after a TTL, a transit and a window.
        time.sleep(TTL + 2)
        since = time.monotonic()
        time.sleep(calm)
        for worker in alive:
            assert worker.process.poll() is None, worker.errors
        end = time.monotonic()
        for worker in crew.workers:
            worker.close()
        data = Path(record).read_bytes()
    for number, (kind, limit) in enumerate(LIMITS.items()):
        rows = struct.iter_unpack("<ddd", data)
        uses = outcome.uses[kind] = sorted(Use(used, asked) for of, used, asked in rows if of == number)
        rate = {"window": 50, "bucket": 20}[kind]
        outcome.above[kind] = excess(limit, uses)
        outcome.most[kind] = most_in_any(1.0, uses)
        outcome.tail[kind] = sum(since <= use < end for use in uses) / (rate * (end - since))
    return outcome


def _rage(alive, start, seconds, rng, outcome):
    """Kill and stop workers at random."""
    begin = time.monotonic()
    stopped = {}  # which worker goes on, and when
    while time.monotonic() < begin + seconds:
        time.sleep(rng.uniform(0.1, 0.6))
        now = time.monotonic()
        for worker in [worker for worker, until in stopped.items() if until <= now]:
            worker.cont()
            del stopped[worker]
        victim = rng.choice(alive)
        if rng.random() < 0.25:
            victim.kill()
            stopped.pop(victim, None)
            alive.remove(victim)
            alive.append(start())
            outcome.kills += 1
        elif victim not in stopped and len(stopped) < len(alive) - 1:
            length = rng.uniform(0.0, 3 * TTL)
            victim.stop()
            stopped[victim] = now + length
            outcome.stops += 1
            outcome.past += length > TTL
    for worker in stopped:
        worker.cont()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with Server("valkey") as server:
        outcome = storm(server.url, options.seconds, options.seed)
    sys.stdout.write(f"{outcome}\n")
    raise SystemExit(any(above > 0 for above in outcome.above.values()))


if __name__ == "__main__":
    main()
