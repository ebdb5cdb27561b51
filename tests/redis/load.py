"""Processes that keep a ledger busy while something happens to it, and the most that they may have used."""

from __future__ import annotations

import re
import signal
import time

from tests.redis.workers import longest_silence, most_for_certain, most_in_any

from headway import Bucket, Concurrency, Remote, Spacing, Window
from waiting import NEVER, wait_until

LEASE = 0.5
QUARANTINE = 0.5
"""Seconds: no quarantine of these limits is as short."""
LONG = 3 * NEVER
"""Seconds: until it is told to end."""
LIMITS = {
    "window": Window(10, per=0.5, remote=False),
    "window-remote": Window(10, per=0.5, remote=Remote(resolution=0, max_transit=0.3)),
    "bucket": Bucket("20/s", burst=5),
    "spacing": Spacing("50ms"),
    "concurrency": Concurrency(3),
}
"""Short enough that an audit sees many windows in a second or two."""

# Each process uses one permit, so that it knows the ledger, and then waits until all of them may begin.
LOAD = """
import logging
class Say(logging.Handler):
    def emit(self, record):
        if "nothing is granted" in record.getMessage():
            say(time.monotonic(), record.getMessage())
logging.getLogger("headway").addHandler(Say())
begun = []  # no Event: its lock may be held by the very thread in which the signal is handled
signal.signal(signal.SIGUSR1, lambda *_: begun.append(True))
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"\\x1edone\\n"), os._exit(0)))  # past locks of threads
limiter = make({limit!r}, engine_timeout=1, **{options!r})
with limiter as permit:
    use(permit)
say("knows it")
while not begun: time.sleep(0.002)
stop = time.monotonic() + {seconds}
def work():
    while time.monotonic() < stop:
        try:
            with limiter.hold(timeout=stop - time.monotonic()) as permit:
                use(permit)
        except (EngineUnavailable, RateLimited, PermitExpired):
            time.sleep(0.01)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
say("done")
"""


class Load:
    """Some processes of four threads each that use a limiter, once they are told to, for some seconds.

    With `clocks` there is one for each of them, and it goes by that wall clock.
    """

    def __init__(self, crew, url, limit, seconds=LONG, *, workers=4, clocks=(), **options):
        self.crew = crew
        self.seconds = seconds
        self.limit = limit
        script = LOAD.format(limit=limit, seconds=seconds, options=options)
        self.workers = [crew.start(url, script, clock=clock) for clock in clocks or [None] * workers]
        self.quarantines: list[float] = []  # how long each one was said to be, and when that was said
        self.noticed: list[float] = []

    def await_knowledge(self):
        """Wait until all of them have used the ledger once."""
        for worker in self.workers:
            self._hear(worker, until="knows it")
        return self

    def begin(self):
        for worker in self.workers:
            worker.process.send_signal(signal.SIGUSR1)

    def run(self):
        """Begin, and be well under way."""
        self.await_knowledge().begin()
        wait_until(lambda: len(self.crew.uses()) >= 8, "some uses")
        time.sleep(0.3)
        return self

    def await_uses(self, since, count=8):
        """Wait until it has used so many, all of them after that moment."""
        wait_until(lambda: sum(use > since for use in self.crew.uses()) >= count, "uses")

    def await_quarantine(self, since):
        """Wait until it has heard of a quarantine, after that moment, and has used some after its end."""

        def over():
            silence, began = longest_silence([use for use in self.crew.uses() if use > since - 0.6])
            return silence > QUARANTINE and self.crew.uses()[-1] > began + silence + 0.2

        wait_until(over, "uses after a quarantine")

    def stop(self):
        """Have it end now, also if its workers wait."""
        for worker in self.workers:
            worker.process.send_signal(signal.SIGTERM)

    def end(self):
        """Have it end, if it was not given a time, and wait for that; all uses."""
        if self.seconds == LONG:
            self.stop()
        for worker in self.workers:
            self._hear(worker, until="done")
            assert worker.join() == ""
        return self.crew.uses()

    def _hear(self, worker, until):
        while (said := worker.hear()) != until:
            found = re.fullmatch(r"([\d.]+) .*granted for ([\d.e+-]+) s.*", said)
            assert found, said
            self.noticed.append(float(found[1]))
            self.quarantines.append(float(found[2]))


def excess(limit, uses):
    """By how many the audit has seen more than the limit, in the worst window; 0 or less is as it should be.

    A permit of a window without a remote, or of a bucket, counts when it is granted, and is used a moment later; so
    only those count against it of which the grant, too, was for certain in that window.
    """
    if isinstance(limit, Window):
        per = limit.per_ns / 1e9
        return (most_in_any(per, uses) if limit.remote else most_for_certain(per, uses)) - limit.count
    if isinstance(limit, Bucket):
        lengths = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
        return max(most_for_certain(d, uses) - limit.burst - limit.rate * d for d in lengths)
    if isinstance(limit, Spacing):
        return most_in_any(limit.interval_ns / 1e9, uses) - 1
    return 0
