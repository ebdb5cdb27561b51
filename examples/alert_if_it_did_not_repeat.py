"""Alert only if it did not repeat: a strict gate against a flapping link.

    python examples/alert_if_it_did_not_repeat.py

A report "link down" that is followed by another one within three seconds comes from a link that flaps, and the router
deals with that. A link that is reported once, and then is silent, is really down: that one pages. So the alert waits
until the event is published, and a repeat stops it.
"""

import sys
import threading
import time

from headway import Once

DURATION = 3.0
REPORTS = [  # seconds from the beginning, and the link
    (0.0, "link 1 down"),
    (0.2, "link 2 down"),
    (0.7, "link 2 down"),  # it flaps
    (1.1, "link 2 down"),
    (1.5, "link 3 down"),
]

gate = Once(DURATION, "strict")


def say(text: str) -> None:
    """One write: `print` makes two, and the other thread's line may come between them."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def alert() -> None:
    """Page for what was published; it needs no timer, since a subscriber wakes when an event is due."""
    ended = 0
    for change in gate.subscribe(since=0):
        if change.status.name == "PUBLISHED":
            say(f"PAGE: {change.event}")
        elif change.status.name == "INVALIDATED":
            say(f"no page: {change.event}, it flaps")
        ended += change.status.name != "SUBMITTED"
        if ended == len({link for _, link in REPORTS}):
            return


if __name__ == "__main__":
    pager = threading.Thread(target=alert)
    pager.start()
    begin = time.monotonic()
    for at, link in REPORTS:
        time.sleep(max(0.0, begin + at - time.monotonic()))
        accepted = gate.submit(link)
        say(f"report: {link}{'' if accepted else ' (a repeat)'}")
    pager.join()
