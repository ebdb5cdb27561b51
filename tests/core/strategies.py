"""What hypothesis draws from: small limits, in which everything happens within a few nanoseconds, and traces.

Small numbers are no loss: the algorithms know nothing but integers, and collisions (two events in one nanosecond, a
wait that ends at a boundary) are where they break. Numbers near 2**62 are the business of `test_forms`.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from core.traces import VERBS, Command, Near
from headway.core.limits import Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.core.remote import Remote

Case = tuple[Limit | Near, int]  # a limit, and the unit of its player

traced = settings(derandomize=True, max_examples=150)


def commands(noise: bytes) -> list[Command]:
    """Five bytes a command; a zero is none, so that a failing trace shrinks to the commands that matter."""
    rows = [noise[i : i + 5] for i in range(0, len(noise), 5)]
    return [(VERBS[v % len(VERBS)], a << 8 | b, c << 8 | d) for v, a, b, c, d in rows if v]


# Bytes of a fixed length: traces are long (lists would hold five commands on average), and drawn in one go.
COMMANDS = st.binary(min_size=125, max_size=125).map(commands)
FEW = st.integers(1, 5)
NS = st.integers(1, 30)


def ns(count: int) -> str | int:
    return f"{count}ns" if count else 0


def remote(transit: int, out: int) -> Remote:
    return Remote(resolution=0, drift_ppm=0, max_transit=ns(transit), out_latency=ns(out))


REMOTES = st.builds(remote, st.integers(1, 40), st.sampled_from([0, 0, 0, 3, 50]))
# Above 1024 permits times are rounded up: to a grid of 2 to 5 ns here, with transits on grids of 0 to 9 ns.
MANY = st.integers(1025, 3000)
COARSE = st.integers(2048, 6000)
COARSE_REMOTES = st.builds(remote, st.integers(1, 10_000), st.sampled_from([0, 0, 7000]))

BUCKETS = st.builds(lambda n, per, burst: (Bucket((n, ns(per)), burst=burst), 1), st.integers(1, 7), NS, FEW)
WINDOWS = st.builds(lambda n, per: (Window(n, per=ns(per), remote=False), 1), FEW, NS)
# Whatever brackets a call counts as the remote does, and the rest at the decision.
BRACKETED_WINDOWS = st.builds(
    lambda n, per, more, transit: (Near(Window(n, per=ns(per)), more, transit), 1),
    FEW,
    NS,
    st.integers(0, 9),
    st.integers(0, 40),
)
REMOTE_WINDOWS = st.builds(lambda n, per, far: (Window(n, per=ns(per), remote=far), 1), FEW, NS, REMOTES)
COARSE_WINDOWS = st.builds(lambda n, per: (Window(n, per=ns(per), remote=False), 300), MANY, COARSE)
COARSE_BRACKETED_WINDOWS = st.builds(
    lambda n, per, more, transit: (Near(Window(n, per=ns(per)), more, transit), 300),
    MANY,
    COARSE,
    st.integers(0, 2000),
    st.integers(1, 10_000),
)
COARSE_REMOTE_WINDOWS = st.builds(
    lambda n, per, far: (Window(n, per=ns(per), remote=far), 300), MANY, COARSE, COARSE_REMOTES
)
SPACINGS = st.builds(
    lambda step, most, late, strict: (
        Spacing(ns(step), max_reserved=most, expire_after=ns(late), strict=strict),
        1,
    ),
    NS,
    st.integers(0, 4),
    st.integers(0, 5),
    st.booleans(),
)
FIXED_WINDOWS = st.builds(
    lambda n, per: (FixedWindow(n, per=ns(per)), 1), FEW, st.sampled_from([7, 10, 13, 30])
)
CONCURRENCIES = st.builds(lambda n: (Concurrency(n), 1), FEW)

KINDS: dict[str, st.SearchStrategy[Case]] = {
    "bucket": BUCKETS,
    "window": WINDOWS,
    "bracketed window": BRACKETED_WINDOWS,
    "coarse bracketed window": COARSE_BRACKETED_WINDOWS,
    "remote window": REMOTE_WINDOWS,
    "coarse window": COARSE_WINDOWS,
    "coarse remote window": COARSE_REMOTE_WINDOWS,
    "spacing": SPACINGS,
    "fixed window": FIXED_WINDOWS,
    "concurrency": CONCURRENCIES,
}
