"""Limits, sampled: counters by bins of two seconds, and ledgers as the engine has them.

Counters are of this server, and reading them costs nothing. A ledger may be a round trip away, so only those of keys
that were used lately are looked at, a bounded number at a time, in a task of its own: an engine that does not answer
does not stop the counters. Which keys those are is not counted, as that would be work for every request. A limit
remembers its latest key; a look at that at every tick is a sample, in which a busy key is likely to be.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from headway.errors import EngineUnavailable, HeadwayError
from headway.service.live.messages import LiveHolder, LiveLedger, LiveLimit, LivePart

if TYPE_CHECKING:
    from headway.service.permits import Held
    from headway.service.served_limit import ServedLimit
    from headway.status import Status

STEP: Final = 2.0
"""Seconds of a bin."""
BINS: Final = 150
"""Bins that are kept: five minutes."""
RATE_BINS: Final = 2
"""Bins, besides the one that is not over, that a rate is of."""
KEYS: Final = 5
"""Ledgers of a limit that are shown."""
HOLDERS: Final = 8
LOOKS: Final = 64
"""Ledgers that are looked at in one tick."""
TEXT: Final = 80
"""Characters of a key or an event that are shown."""
SAME: Final = 0.3
"""Seconds by which two estimates of one moment may differ."""

Clock = Callable[[], float]
KeyValue = str | Mapping[str, str | None] | None


def cut(text: str) -> str:
    """A text, short enough to be shown.

    >>> cut("alice"), len(cut("x" * 1000))
    ('alice', 80)
    """
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"


def key_text(key: KeyValue) -> str | None:
    """A key in one line; with metrics, those that have one.

    >>> key_text("alice"), key_text(None), key_text({"tokens": "alice", "requests": None})
    ('alice', None, 'tokens=alice')
    """
    if key is None or isinstance(key, str):
        return None if key is None else cut(key)
    return cut(" ".join(f"{metric}={part}" for metric, part in key.items() if part is not None)) or None


class Series:
    """Counts by bin; the last one is of the newest bin, and not complete.

    >>> series = Series()
    >>> series.add(2, 10); series.add(3, 10); series.add(1, 12)
    >>> series.last(4), series.total
    ([0, 5, 0, 1], 6)
    """

    __slots__ = ("_bins", "_newest", "total")

    def __init__(self) -> None:
        self._bins: deque[int] = deque([0], BINS)
        self._newest = 0
        self.total = 0

    def add(self, count: int, number: int) -> None:
        """So many more, in the bin of this number, which is the newest one or a newer one."""
        self._bins.extend([0] * min(number - self._newest, BINS))
        self._newest = max(number, self._newest)
        self._bins[-1] += count
        self.total += count

    def last(self, bins: int = BINS) -> list[int]:
        """The last bins, oldest first; shorter where there are not so many yet."""
        found = list(self._bins)
        return found[-bins:]

    def rate(self, into_bin: float) -> float:
        """A second, where the newest bin has so many seconds behind it."""
        bins = self.last(RATE_BINS + 1)
        return round(sum(bins) / ((len(bins) - 1) * STEP + max(into_bin, STEP / 4)), 2)


class LimitSample:
    """What is known of one limit."""

    __slots__ = ("_denied_before", "_granted_before", "_pauses", "denied", "granted", "keys", "ledgers")

    def __init__(self) -> None:
        self._granted_before = self._denied_before = 0
        self.granted, self.denied = Series(), Series()
        # The keys that were seen lately, the latest last, and their ledgers as far as they were looked at.
        self.keys: OrderedDict[str | None, KeyValue] = OrderedDict()
        self.ledgers: dict[str | None, LiveLedger] = {}
        self._pauses: dict[str | None, float | None] = {}

    @property
    def paused_until(self) -> float | None:
        """Nothing is granted before; None if a key that was looked at is not paused."""
        ends = [self._pauses.get(name) for name in self.ledgers]
        known = [end for end in ends if end is not None]
        return min(known) if known and len(known) == len(ends) else None

    @property
    def busy(self) -> int:
        """How much was asked of it in the last minutes."""
        return sum(self.granted.last()) + sum(self.denied.last())

    def count(self, served: ServedLimit, number: int) -> None:
        self.granted.add(max(0, served.granted - self._granted_before), number)
        self.denied.add(max(0, served.denied - self._denied_before), number)
        self._granted_before, self._denied_before = served.granted, served.denied

    def see_key(self, served: ServedLimit) -> None:
        """Remember the latest key. A limit that was not used is looked at without one."""
        key: KeyValue = served.keys.latest
        name = key_text(key)
        self.keys[name] = key
        self.keys.move_to_end(name)
        if len(self.keys) > 1 and not served.keys.used_without_key:
            self._forget(None)
        while len(self.keys) > KEYS:
            self._forget(next(iter(self.keys)))

    def _forget(self, name: str | None) -> None:
        self.keys.pop(name, None)
        self.ledgers.pop(name, None)
        self._pauses.pop(name, None)

    def take_status(self, name: str | None, status: Status, paused_until: float | None) -> None:
        """What a look at the ledger of a key has shown."""
        if name not in self.keys:
            return
        parts = [
            LivePart(
                limit=str(part.limit),
                metric=part.metric,
                capacity=part.limit.capacity,
                remaining=max(0, part.remaining),
            )
            for part in status.parts or (status,)
        ]
        self.ledgers[name] = LiveLedger(
            key=name, parts=parts, waiting=status.waiting, in_flight=status.in_flight
        )

        before = self._pauses.get(name)
        if paused_until is None or before is None or abs(paused_until - before) > SAME:
            self._pauses[name] = None if paused_until is None else round(paused_until, 1)


def paused_for(status: Status, known: float) -> float | None:
    """Seconds for which nothing is granted whatever is left, as far as a status tells; `known` is a pause of the API.

    A ledger that is merely used up is as new after `reset_after`, and grants before that.

    >>> from headway import Limiter
    >>> limiter = Limiter("2/s")
    >>> paused_for(limiter.peek(), 0) is None
    True
    >>> limiter.pause(30)
    >>> 29 < paused_for(limiter.peek(), 0) <= 30
    True
    """
    if known > 0 and status.retry_after >= known - 1:
        return known
    paused = status.remaining == 0 and status.exact and status.retry_after > status.reset_after + SAME
    return status.retry_after if paused else None


class LimitSamples:
    """All limits, and the looks at their ledgers."""

    def __init__(self) -> None:
        self._samples: dict[str, tuple[ServedLimit, LimitSample]] = {}
        self._turn = 0
        self._looking: asyncio.Task[None] | None = None
        self.engine_up = True

    def count(self, limits: Iterable[ServedLimit], number: int) -> None:
        """Read the counters."""
        before, self._samples = self._samples, {}
        for served in limits:
            known = before.get(served.name)
            sample = known[1] if known is not None and known[0] is served else LimitSample()
            sample.count(served, number)
            self._samples[served.name] = served, sample

    def shown(self, most: int) -> list[tuple[ServedLimit, LimitSample]]:
        """Those that are shown, in their order; where there are too many, the busiest."""
        found = list(self._samples.values())
        if len(found) <= most:
            return found
        chosen = {served.name for served, _ in heapq.nlargest(most, found, key=lambda pair: pair[1].busy)}
        return [pair for pair in found if pair[0].name in chosen]

    def __len__(self) -> int:
        return len(self._samples)

    # -- ledgers

    def look(self, shown: list[tuple[ServedLimit, LimitSample]], wall: Clock, monotonic: Clock) -> None:
        """Begin to look at the next ledgers, unless the last look is not over. `wall` and `monotonic` are clocks."""
        for served, sample in shown:
            sample.see_key(served)
        if self._looking is not None and not self._looking.done():
            return
        ledgers = [(served, sample, name) for served, sample in shown for name in sample.keys]
        if not ledgers:
            return
        first = self._turn % len(ledgers) if len(ledgers) > LOOKS else 0
        turn = (ledgers[first:] + ledgers[:first])[:LOOKS]
        self._turn = first + len(turn)
        self._looking = asyncio.ensure_future(self._look(turn, wall, monotonic))

    async def _look(
        self, turn: list[tuple[ServedLimit, LimitSample, str | None]], wall: Clock, monotonic: Clock
    ) -> None:
        results = await asyncio.gather(
            *(self._look_at(*one, wall, monotonic) for one in turn), return_exceptions=True
        )
        self.engine_up = not any(isinstance(result, EngineUnavailable) for result in results)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, HeadwayError):
                raise result

    async def _look_at(
        self, served: ServedLimit, sample: LimitSample, name: str | None, wall: Clock, monotonic: Clock
    ) -> None:
        limiter, key = served.limiter, sample.keys[name]
        if limiter is None:
            return
        status = await limiter.peek_async(key)
        length = paused_for(status, served.paused_until - monotonic())
        sample.take_status(name, status, None if length is None else wall() + length)

    async def settled(self) -> None:
        """Wait until the look that has begun is over."""
        if self._looking is not None:
            await asyncio.wait((self._looking,))

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()


def live_limit(
    served: ServedLimit,
    sample: LimitSample,
    permits: int,
    held: Sequence[Held],
    into_bin: float,
    ahead: float,
) -> LiveLimit:
    """A limit as it is told. `ahead` is the wall clock minus the clock of leases."""
    config = served.config
    return LiveLimit(
        name=served.name,
        limit=config.text,
        source=served.source,
        shadow=config.shadow,
        unlimited=served.limiter is None,
        granted=served.granted,
        denied=served.denied,
        granted_rate=sample.granted.rate(into_bin),
        denied_rate=sample.denied.rate(into_bin),
        waiting=served.waiting,
        permits=permits,
        keys=len(served.keys),
        paused_until=sample.paused_until,
        ledgers=[sample.ledgers[name] for name in sorted(sample.ledgers, key=lambda name: name or "")],
        holders=[
            LiveHolder(key=key_text(one.permit.key), lease=one.lease, expires=round(one.expires + ahead, 1))
            for one in held
        ],
        granted_series=sample.granted.last(),
        denied_series=sample.denied.last(),
    )
