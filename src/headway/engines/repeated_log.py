"""What goes wrong again and again is logged once, and then once a minute with a count.

A server that is full or away is asked by every call, and answers every one of them with an error. The texts of one
trouble differ in numbers: the line of a script, its SHA-1, a port. So texts are compared without them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from headway.printable import printable

log = logging.getLogger("headway")

AGAIN_NS = 60_000_000_000
"""Nanoseconds after which the same is said again."""
RECOVERED_NS = 5_000_000_000
"""Nanoseconds without it after which the same is news if a connection was made in between."""
MOST_TEXTS = 64

_VARIABLE = re.compile(r"\b[0-9a-f]{40}\b|\d+")


class RepeatedLog:
    """The warnings of one engine."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        # For each text: when it was logged last, when it came last, and how often it was left out since it was logged.
        self._texts: dict[str, tuple[int, int, int]] = {}

    def warning(self, subject: str, text: str, kind: str = "") -> None:
        """Log the text, or count it. `kind` is shown before it, and the same text of another kind is the same."""
        pattern = _VARIABLE.sub("#", f"{subject}: {text}")
        now = self._now()
        logged, _, left_out = self._texts.pop(pattern, (-AGAIN_NS, 0, 0))
        if now - logged < AGAIN_NS:
            self._texts[pattern] = (logged, now, left_out + 1)
            return
        while len(self._texts) >= MOST_TEXTS:
            self._texts.pop(next(iter(self._texts), ""), None)
        self._texts[pattern] = (now, now, 0)
        more = f" ({left_out} more since the last line like this)" if left_out else ""
        log.warning("%s: %s%s%s", subject, kind, printable(text), more)

    def recovered(self) -> None:
        """A connection was made: what goes wrong later is news, unless it went wrong just now."""
        now = self._now()
        for pattern, (_, came, _) in list(self._texts.items()):
            if now - came >= RECOVERED_NS:
                self._texts.pop(pattern, None)
