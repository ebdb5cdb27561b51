"""The other libraries, each by its natural fastest call that is granted, in memory, with a huge limit.

Every peer takes turns with ours in pairs, like for like: a call beside `try_acquire()`, a key among 10,000 live ones
beside the same key, a decorator beside a decorator, an await beside an await. Where a library would be slowed down by
the huge limit itself, it is helped, untimed: one that logs every grant starts each sample with an empty log, and one
that expires keys in a thread has the thread started before its turn and ended before ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from bench import calls
from bench.figure import Effort, Figure, Findings, Reading, Row, Section
from bench.timing import Side, ratio, take_turns, undisturbed

HUGE = 1_000_000_000
KEYS = [f"user:{number}" for number in range(calls.LIVE_KEYS)]

OURS: dict[str, tuple[str, Callable[[], Side]]] = {
    "unkeyed": ("headway, `try_acquire()`", calls.unkeyed),
    "keyed": ("headway, `try_acquire(key)`", calls.literal_key),
    "decorator": ("headway, `throttle`", calls.decorated_bucket),
    "async": ("headway, `acquire_async()`", calls.awaited),
}


@dataclass(frozen=True)
class Peer:
    """A library in one of its uses; `make` sets it up and says how it is called."""

    group: str
    package: str
    use: str
    make: Callable[[], Side]
    slice_ms: float = 5.0
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.package} {version(self.package)}, {self.use}"


def limits_side(strategy: str, key: str | None) -> Side:
    import limits

    storage = limits.storage.MemoryStorage()
    limiter = getattr(limits.strategies, strategy)(storage)
    item = limits.RateLimitItemPerHour(HUGE)
    for name in KEYS if key else ():
        limiter.hit(item, name)

    call = f'f(item, "{key}")' if key else "f(item)"
    hit = (lambda: limiter.hit(item, key)) if key else (lambda: limiter.hit(item))

    def prepare() -> None:
        """Start its thread outside of the timing; a log of grants starts empty."""
        if strategy == "MovingWindowRateLimiter":
            storage.reset()
        hit()

    def end_thread() -> None:
        storage.timer.join()

    return Side(call, {"f": limiter.hit, "item": item}, granted=hit, before=prepare, after=end_thread)


def limits_peer(strategy: str, use: str, key: str | None = None, slice_ms: float = 5.0) -> Peer:
    group = "keyed" if key else "unkeyed"
    return Peer(group, "limits", use, lambda: limits_side(strategy, key), slice_ms)


def pyrate_log() -> Side:
    from pyrate_limiter import InMemoryBucket, Limiter, Rate

    bucket = InMemoryBucket([Rate(HUGE, 1000)])
    limiter = Limiter(bucket)
    return Side(
        'f("name", blocking=False)',
        {"f": limiter.try_acquire},
        granted=lambda: limiter.try_acquire("name", blocking=False),
        before=bucket.flush,
    )


def pyrate_gcra() -> Side:
    from pyrate_limiter import Limiter, Rate, StateBucket

    limiter = Limiter(StateBucket([Rate(HUGE, 1000)]))
    return Side(
        'f("name", blocking=False)',
        {"f": limiter.try_acquire},
        granted=lambda: limiter.try_acquire("name", blocking=False),
    )


def pyrate_keyed() -> Side:
    """Its names share one bucket unless a factory is written; this is the one of its manual, with a dict."""
    from pyrate_limiter import BucketFactory, InMemoryBucket, Limiter, MonotonicClock, Rate, RateItem

    class BucketPerName(BucketFactory):
        def __init__(self) -> None:
            self.clock = MonotonicClock()
            self.by_name: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> RateItem:
            return RateItem(name, self.clock.now(), weight=weight)

        def get(self, item: RateItem) -> Any:
            bucket = self.by_name.get(item.name)
            if bucket is None:
                bucket = self.by_name[item.name] = InMemoryBucket([Rate(HUGE, 1000)])
            return bucket

    factory = BucketPerName()
    limiter = Limiter(factory)
    for name in KEYS:
        limiter.try_acquire(name, blocking=False)
    return Side(
        'f("user:42", blocking=False)',
        {"f": limiter.try_acquire},
        granted=lambda: limiter.try_acquire("user:42", blocking=False),
        before=factory.by_name["user:42"].flush,
    )


def throttled_side(algorithm: str, keys: list[str]) -> Side:
    from throttled import MemoryStore, Throttled, per_hour

    limiter = Throttled(
        key="name",
        using=algorithm,
        quota=per_hour(HUGE, burst=HUGE),
        store=MemoryStore(options={"MAX_SIZE": 2 * calls.LIVE_KEYS}),
    )
    for name in keys:
        limiter.limit(name)
    call = 'f("user:42")' if keys else "f()"
    return Side(
        call, {"f": limiter.limit}, granted=lambda: not limiter.limit(keys[42] if keys else None).limited
    )


def token_bucket_side(keys: list[str]) -> Side:
    from token_bucket import Limiter, MemoryStorage

    limiter = Limiter(HUGE, HUGE, MemoryStorage())
    for name in keys:
        limiter.consume(name)
    key = keys[42] if keys else "name"
    return Side(f'f("{key}")', {"f": limiter.consume}, granted=lambda: limiter.consume(key))


def ratelimit_side(*, net: bool) -> Side:
    from ratelimit import limits

    function = limits(calls=HUGE, period=3600)(calls.trivial)
    return Side(
        "f()",
        {"f": function, "plain": calls.trivial},
        net_of="plain()" if net else None,
        granted=lambda: function() == 1,
    )


def aiolimiter_side() -> Side:
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(HUGE, 1)
    return Side(
        "await f()",
        {"f": limiter.acquire},
        awaits=True,
        granted=lambda: calls.granted_at_once(limiter.acquire()),
    )


def asynciolimiter_side() -> Side:
    """Its other limiters let one call through per turn of the loop; this one passes a burst."""
    from asynciolimiter import LeakyBucketLimiter

    limiter = LeakyBucketLimiter(HUGE, capacity=1000 * HUGE)
    return Side(
        "await f()",
        {"f": limiter.wait},
        awaits=True,
        granted=lambda: calls.granted_at_once(limiter.wait()),
        before=limiter.reset,
    )


PEERS = (
    limits_peer("FixedWindowRateLimiter", "fixed window"),
    limits_peer("MovingWindowRateLimiter", "moving window"),
    limits_peer("SlidingWindowCounterRateLimiter", "sliding window counter"),
    Peer("unkeyed", "pyrate-limiter", "sliding log", pyrate_log),
    Peer("unkeyed", "pyrate-limiter", "GCRA", pyrate_gcra),
    Peer("unkeyed", "throttled-py", "GCRA", lambda: throttled_side("gcra", [])),
    Peer("unkeyed", "throttled-py", "token bucket", lambda: throttled_side("token_bucket", [])),
    Peer("unkeyed", "token-bucket", "token bucket", lambda: token_bucket_side([])),
    Peer(
        "unkeyed",
        "ratelimit",
        "fixed window",
        lambda: ratelimit_side(net=True),
        note="it is a decorator: net of the call of the bare function",
    ),
    limits_peer("FixedWindowRateLimiter", "fixed window", "user:42", slice_ms=40.0),
    limits_peer("SlidingWindowCounterRateLimiter", "sliding window counter", "user:42", slice_ms=40.0),
    Peer("keyed", "pyrate-limiter", "sliding log", pyrate_keyed),
    Peer("keyed", "throttled-py", "GCRA", lambda: throttled_side("gcra", KEYS)),
    Peer("keyed", "throttled-py", "token bucket", lambda: throttled_side("token_bucket", KEYS)),
    Peer("keyed", "token-bucket", "token bucket", lambda: token_bucket_side(KEYS)),
    Peer("decorator", "ratelimit", "fixed window", lambda: ratelimit_side(net=False)),
    Peer("async", "aiolimiter", "leaky bucket", aiolimiter_side),
    Peer(
        "async",
        "asynciolimiter",
        "leaky bucket",
        asynciolimiter_side,
        note="counts up, and reads no clock until its loop is idle",
    ),
)


def versus(effort: Effort) -> Findings:
    """Every peer beside ours of its group."""
    rows: list[Row] = []
    ours: dict[str, list[float]] = {group: [] for group in OURS}
    for peer in PEERS:
        taken = take_turns([peer.make(), OURS[peer.group][1]()], effort, slice_ms=peer.slice_ms)
        reading = ratio(taken)
        ours[peer.group] += [mine for _, mine in taken]
        rows.append(Row(peer.group, peer.name, reading.ns or 0.0, reading.value, note=peer.note))
    for group, (name, _) in OURS.items():
        rows.append(Row(group, name, undisturbed(ours[group]), ours=True))
    unkeyed = min((row for row in rows if row.group == "unkeyed" and not row.ours), key=lambda row: row.ratio)
    keyed = next(row for row in rows if row.group == "keyed" and row.name.startswith("limits "))
    return Findings(
        {
            "peer-fastest": Reading(unkeyed.ratio, ns=unkeyed.ns, note=unkeyed.name),
            "peer-limits": Reading(keyed.ratio, ns=keyed.ns, note=keyed.name),
        },
        rows,
    )


SECTION = Section(
    "peers",
    "Peers",
    (
        Figure("peer-fastest", "fastest synchronous peer over ours, unkeyed", versus, ">=", 8, "x ours"),
        Figure("peer-limits", "limits, fixed window, over ours, keyed", versus, ">=", 20, "x ours"),
    ),
)
