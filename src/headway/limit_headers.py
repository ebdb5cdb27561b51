"""The HTTP headers that tell how a limit stands, written in one place: as a mapping, as pairs of bytes, as a block.

A server writes them into every answer, so they have to be cheap. What depends on the limit alone (its name, the policy,
the quota) is written once for each limit and kept. What depends on the moment is three numbers, and they are formatted
straight into the bytes that are sent.

The facts are those of `Status.headers`: `r` and Remaining are what can be had at once. `t` and Reset are the seconds
until more can be had or, while something is left, until all of it can; they are absent where no time is known.
`Retry-After` is there for a denial, and then equals `t`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from headway.core.ledger import FOREVER
from headway.core.limits import Bucket, Concurrency, Limit, Spacing
from headway.core.unlimited import Unlimited

try:
    import cython
except ImportError:
    from headway import _cython as cython

SECOND: Final = 1_000_000_000
MOST: Final = 10**15 - 1
"""The largest integer of a structured field (RFC 9651)."""
KEPT: Final = 1024
"""How many limits have their texts kept. A function that makes overrides may make limits without end."""

# C integers where this file is compiled.
_SECOND = SECOND
_MOST = MOST
_FOREVER = FOREVER
# Up to here a float has every nanosecond, so that integers and floats are rounded up to the same second.
_EXACT = 1 << 53


class LimitTexts:
    """What headers say of a limit at any time; of several, the one that binds, beside the policies of all."""

    __slots__ = (
        "capacity",
        "capacity_pair",
        "limit",
        "limits",
        "lines",
        "name",
        "policies",
        "policy_pair",
        "ratelimit",
        "text",
    )

    def __init__(self, limits: tuple[Limit, ...], index: int) -> None:
        limit = self.limit = limits[index]
        # They are kept, so that no other limit gets their identity while the texts are.
        self.limits = limits
        self.text = str(limit)
        self.name = f'"{limit.kind}-{index}"'
        self.policies = ", ".join([f'"{one.kind}-{i}";{_policy(one)}' for i, one in enumerate(limits)])
        self.capacity = str(limit.capacity)
        # How the value of `RateLimit` begins.
        self.ratelimit = self.name.encode()
        self.policy_pair = (b"ratelimit-policy", self.policies.encode())
        self.capacity_pair = (b"x-ratelimit-limit", self.capacity.encode())
        # The lines of a block that do not change.
        self.lines = b"ratelimit-policy: %b\r\nx-ratelimit-limit: %b\r\n" % (
            self.policy_pair[1],
            self.capacity_pair[1],
        )


_single: dict[int, LimitTexts] = {}
_latest: LimitTexts | None = None
_several: dict[tuple[int, ...], LimitTexts] = {}


def texts_of(limit: Limit) -> LimitTexts:
    """The texts of a limit that decides alone.

    >>> from headway import Window
    >>> texts_of(Window(2, per=60)).policies
    '"window-0";q=2;w=60'
    """
    global _latest  # mostly it is the same limit again
    found = _latest
    if found is not None and found.limit is limit:
        return found
    found = _single.get(id(limit))
    if found is None:
        if len(_single) >= KEPT:
            _single.clear()
        found = _single[id(limit)] = LimitTexts((limit,), 0)
    _latest = found
    return found


def texts_of_several(limits: Sequence[Limit], index: int) -> LimitTexts:
    """The texts of several limits that decide together; the one at `index` binds."""
    key = (index, *map(id, limits))
    found = _several.get(key)
    if found is None:
        if len(_several) >= KEPT:
            _several.clear()
        found = _several[key] = LimitTexts(tuple(limits), index)
    return found


def _policy(limit: Limit) -> str:
    """The parameters of a policy: the most that passes in any `w` whole seconds."""
    if isinstance(limit, Concurrency):
        return f'q={min(limit.count, MOST)};qu="concurrent-requests"'
    if isinstance(limit, Unlimited):
        return f"q={MOST}"
    per_ns: int = limit.interval_ns if isinstance(limit, Spacing) else limit.per_ns  # type: ignore[attr-defined]
    window = -(-per_ns // SECOND)
    if limit.capacity == 0:
        quota = 0
    elif isinstance(limit, Bucket):
        quota = limit.burst + limit.count * window * SECOND // per_ns
    else:
        quota = limit.capacity * -(-window * SECOND // per_ns)
    return f"q={min(quota, MOST)};w={window}"


def until(retry_after: float, reset_after: float) -> int:
    """The whole seconds of `t` and Reset; -1 where no time is known.

    >>> until(0.0, 59.2), until(1.5, 60.0), until(math.inf, 60.0)
    (60, 2, -1)
    """
    wait = retry_after if retry_after > 0 else reset_after
    return -1 if wait == math.inf else min(math.ceil(wait), MOST)


def until_of_ns(wait: int, reset: int) -> int:
    """The same of nanoseconds, without floats where they would say the same.

    >>> until_of_ns(0, 59_200_000_000), until_of_ns(1_500_000_000, 60_000_000_000), until_of_ns(FOREVER, 0)
    (60, 2, -1)
    """
    ns = wait if wait > 0 else reset
    if ns < _EXACT:
        return -(-ns // _SECOND)
    return -1 if ns >= _FOREVER else until(0.0, ns / SECOND)


def as_mapping(texts: LimitTexts, left: int, retry: float, reset: float, denied: bool) -> dict[str, str]:
    """The headers by the names that people write."""
    t = until(retry, reset)
    r = min(left, MOST)
    headers = {
        "RateLimit": f"{texts.name};r={r}" + (f";t={t}" if t >= 0 else ""),
        "RateLimit-Policy": texts.policies,
        "X-RateLimit-Limit": texts.capacity,
        "X-RateLimit-Remaining": str(left),
    }
    if t >= 0:
        headers["X-RateLimit-Reset"] = str(t)
        if denied and retry > 0:
            headers["Retry-After"] = str(t)
    return headers


def as_pairs(
    texts: LimitTexts, left: int, retry: float, reset: float, denied: bool, legacy: bool
) -> list[tuple[bytes, bytes]]:
    """The same as ASGI has headers; `legacy`: with the older trio.

    >>> from headway import Window
    >>> as_pairs(texts_of(Window(2, per=60)), 1, 0.0, 59.5, False, False)
    [(b'ratelimit', b'"window-0";r=1;t=60'), (b'ratelimit-policy', b'"window-0";q=2;w=60')]
    """
    t = until(retry, reset)
    pairs = pairs_until(texts, left, t, legacy)
    if denied and retry > 0 and t >= 0:
        pairs.append((b"retry-after", b"%d" % t))
    return pairs


def pairs_until(texts: LimitTexts, left: int, t: int, legacy: bool) -> list[tuple[bytes, bytes]]:
    """What a grant tells, where `t` is known already.

    >>> from headway import Window
    >>> pairs_until(texts_of(Window(2, per=60)), 1, 60, False)[0]
    (b'ratelimit', b'"window-0";r=1;t=60')
    """
    r = min(_MOST, left)
    if cython.compiled and r >= 0:
        value = written(texts.ratelimit, r, t)  # type: ignore[name-defined] # noqa: F821 - in limit_headers.pxd
    elif t < 0:
        value = b"%b;r=%d" % (texts.ratelimit, r)
    else:
        value = b"%b;r=%d;t=%d" % (texts.ratelimit, r, t)
    pairs = [(b"ratelimit", value), texts.policy_pair]
    if legacy:
        pairs += (texts.capacity_pair, (b"x-ratelimit-remaining", b"%d" % left))
        if t >= 0:
            pairs.append((b"x-ratelimit-reset", b"%d" % t))
    return pairs


def as_block(texts: LimitTexts, left: int, retry: float, reset: float, denied: bool) -> bytes:
    """The same as the lines of an HTTP/1.1 answer.

    >>> from headway import Window
    >>> as_block(texts_of(Window(2, per=60)), 1, 0.0, 59.5, False).splitlines()[0]
    b'ratelimit: "window-0";r=1;t=60'
    """
    t = until(retry, reset)
    r = min(MOST, left)
    if t < 0:
        return b"ratelimit: %b;r=%d\r\n%bx-ratelimit-remaining: %d\r\n" % (
            texts.ratelimit,
            r,
            texts.lines,
            left,
        )
    block = b"ratelimit: %b;r=%d;t=%d\r\n%bx-ratelimit-remaining: %d\r\nx-ratelimit-reset: %d\r\n" % (
        texts.ratelimit, r, t, texts.lines, left, t,
    )  # fmt: skip
    return b"%bretry-after: %d\r\n" % (block, t) if denied and retry > 0 else block
