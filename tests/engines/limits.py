"""Every kind of limit, in two speeds: one that stands still for the length of a test, one that is soon as new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway import AllOf, Bucket, Concurrency, FixedWindow, Remote, Spacing, Window

HOUR = 3600
REMOTE = Remote(resolution=0, drift_ppm=0, max_transit=HOUR)
QUICK_REMOTE = Remote(resolution=0, drift_ppm=0, max_transit=0.05)


@dataclass(frozen=True)
class Kind:
    """A limit, and what can be said of it whatever the engine is."""

    id: str
    limit: Any
    count: int = 3
    """How many it grants at once."""
    held: bool = False
    """A permit is out until it ends."""
    exact: bool = True
    """When it is used up, the time of the next permit is known."""
    promises: bool = False
    """Times can be reserved."""
    comes_back: bool = False
    """A completed permit can be had again at once."""
    per: float = HOUR
    """Seconds after which a permit can be had again at the earliest."""

    def cost(self, number: int) -> Any:
        """So much of everything."""
        return dict.fromkeys(self.limit, number) if isinstance(self.limit, Mapping) else number


def kinds(count: int = 3) -> tuple[Kind, ...]:
    """Nothing of it comes back by itself while a test runs."""
    return (
        Kind("window", Window(count, per=HOUR), count),
        Kind("window-remote", Window(count, per=HOUR, remote=REMOTE), count, held=True, exact=False),
        Kind("bucket", Bucket((count, HOUR), burst=count), count, promises=True),
        Kind("spacing", Spacing(HOUR), 1, promises=True),
        Kind("fixed-window", FixedWindow(count, per="month"), count),
        Kind("concurrency", Concurrency(count), count, held=True, exact=False, comes_back=True),
        Kind("all-of", AllOf(Window(count, per=HOUR), Concurrency(count + 2)), count, held=True),
        Kind(
            "metrics",
            {"calls": Window(count, per=HOUR), "slots": Concurrency(count + 2)},
            count,
            held=True,
        ),
    )


KINDS = kinds()
SINGLE = tuple(kind for kind in KINDS if kind.count > 1 and not isinstance(kind.limit, AllOf | Mapping))
"""One rule, several permits."""

FAST = (
    Kind("window", Window(2, per=0.08), 2, per=0.08),
    Kind("window-remote", Window(2, per=0.08, remote=QUICK_REMOTE), 2, held=True, per=0.08),
    Kind("bucket", Bucket((2, 0.16), burst=2), 2, promises=True, per=0.08),
    Kind("spacing", Spacing(0.08), 1, promises=True, per=0.08),
    Kind("fixed-window", FixedWindow(2, per=0.1), 2, per=0.1),
    Kind("all-of", AllOf(Window(2, per=0.08), Concurrency(9)), 2, held=True, per=0.08),
    Kind("metrics", {"calls": Window(2, per=0.08), "slots": Concurrency(9)}, 2, held=True, per=0.08),
)
