"""A ledger of a server, read without its limiter.

The layout is described at the top of `engines/redis/script/lua/header.lua`. The stored bytes are decoded into the
core's own
ledgers, so that nothing is computed here that the algorithms compute already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import singledispatch
from struct import unpack_from
from typing import Any, NamedTuple
from urllib.parse import unquote

from headway.core.bucket import BucketLedger
from headway.core.ledger import FOREVER, Ledger
from headway.core.spacing import SpacingLedger
from headway.core.window import WindowLedger
from headway.engines.redis.script.codec import Stored, decode, unnoted
from headway.engines.redis.script.protocol import META

FORMAT = 1


class Address(NamedTuple):
    """The limiter, metric and key that a key of the server belongs to."""

    root: bytes
    place: bytes
    name: str
    key: str | None
    metric: str | None

    @property
    def label(self) -> str:
        """The limiter's name, with the metric behind it."""
        return self.name if self.metric is None else f"{self.name}/{self.metric}"


@dataclass(frozen=True, slots=True)
class Meta:
    """What is known of all ledgers under one root; times in ticks of the server's clock."""

    seq: int
    last: int
    quarantined: int
    paused: int
    expires: int
    waiting: int
    generation: int
    born: int
    epoch: bytes
    server: bytes

    @classmethod
    def read(cls, data: bytes) -> Meta | None:
        """Decode it; None where another version of headway wrote it."""
        form, seq, last, quarantined, paused, expires, waiting, _, governed, born, epoch = META.unpack_from(
            data
        )
        if form != FORMAT:
            return None
        numbers = (seq, last, quarantined, paused, expires, waiting, governed, born)
        seq, last, quarantined, paused, expires, waiting, governed, born = map(int, numbers)
        return cls(seq, last, quarantined, paused, expires, waiting, governed, born, epoch, data[META.size :])


@dataclass(slots=True)
class LedgerView:
    """One key's ledgers as they were at `now`: one for each rule of a combined limit.

    `lapses` has, for each of them, the number of permits that came back without an end.
    """

    address: Address
    limit: str
    meta: Meta
    now: int
    ledgers: list[Ledger]
    lapses: list[int]

    @property
    def held_up(self) -> int:
        """Ticks until a quarantine and a pause are over."""
        return max(0, self.meta.quarantined - self.now, self.meta.paused - self.now)

    @property
    def in_doubt(self) -> int:
        """Ticks for which a loss may still matter, where its quarantine was cut short and is over."""
        return 0 if self.meta.quarantined > self.now else max(0, self.meta.born - self.now)

    @property
    def waiting(self) -> int:
        """Waiters in the queue, and slots that are promised for later."""
        return self.meta.waiting + max((reserved(ledger, self.now) for ledger in self.ledgers), default=0)

    @property
    def binding(self) -> Ledger | None:
        """The ledger that decides: the one with the longest wait, or else the least left. None: all are new."""
        now = self.now
        return max(self.ledgers, key=lambda ledger: (ledger.wait(now, 1), -left(ledger, now)), default=None)

    @property
    def remaining(self) -> int | None:
        """What could be taken now; None where everything is left and the capacity is not stored."""
        if self.held_up or self.meta.waiting:
            return 0
        return None if self.binding is None else self.binding.remaining(self.now)

    @property
    def capacity(self) -> int | None:
        return None if self.binding is None else self.binding.get_rule().capacity

    @property
    def in_flight(self) -> int:
        return max((ledger.in_flight(self.now) for ledger in self.ledgers), default=0)

    @property
    def abandoned(self) -> int:
        """Permits that came back without an end since the ledger began; under several rules they are the same ones."""
        return max(self.lapses, default=0)

    @property
    def wait(self) -> int | None:
        """Ticks until the next permit; None if it never comes."""
        wait = max([self.held_up, *(ledger.wait(self.now, 1) for ledger in self.ledgers)])
        return wait if wait < FOREVER else None

    @property
    def exact(self) -> bool:
        """Whether `wait` is exact: while permits are out, or callers wait, it is a lower bound."""
        return not self.meta.waiting and all(ledger.exact(self.now, 1) for ledger in self.ledgers)


def left(ledger: Ledger, now: int) -> float:
    """The share of a ledger that is left."""
    return ledger.remaining(now) / max(1, ledger.get_rule().capacity)


@singledispatch
def reserved(ledger: Ledger, now: int) -> int:  # noqa: ARG001
    """Slots that are promised for later, as `peek().waiting` counts them."""
    return 0


@reserved.register
def _(ledger: SpacingLedger, now: int) -> int:
    return max(0, -(-(ledger.last - now) // ledger.rule.step))


@reserved.register
def _(ledger: BucketLedger, now: int) -> int:
    rule = ledger.rule
    ahead = ledger.tat - rule.room - now
    return max(0, -(-ahead * rule.parts // (rule.whole * rule.parts + rule.part)))


@reserved.register
def _(ledger: WindowLedger, now: int) -> int:  # noqa: ARG001
    return max(0, -ledger.free)


def order(address: Address) -> tuple[str, str, str]:
    return address.name, address.metric or "", address.key or ""


def matches(address: Address, wanted: str | None) -> bool:
    """Whether the pattern or part of a name, `wanted`, fits this address.

    >>> found = read_key(b"headway:{api:alice}")
    >>> matches(found, "api*"), matches(found, "lic"), matches(found, "bob")
    (True, True, False)
    """
    if wanted is None:
        return True
    name = address.label if address.key is None else f"{address.label}:{address.key}"
    return fnmatchcase(name, wanted) or wanted in name


def read_key(key: bytes) -> Address | None:
    """The address that is written in a key of the server; None if the key is not a ledger.

    >>> read_key(b"headway:{a%3Ab:c}")[2:], read_key(b"headway:{llm}/tokens:bob")[2:]
    (('a:b', 'c', None), ('llm', 'bob', 'tokens'))
    >>> read_key(b"headway:{api}:g")
    """
    found = re.fullmatch(
        r"([^{]*:\{([^}:]*)(?::([^}]*))?\})(?:/([^:]*)(?::([^:]*))?)?", key.decode(errors="replace")
    )
    if found is None:
        return None
    root, name, own, metric, scoped = found.groups()
    texts = [None if text is None else unquote(text) for text in (own if metric is None else scoped, metric)]
    return Address(root.encode(), key, unquote(name), *texts)


def read_ledger_view(address: Address, dumped: list[Any], limit: bytes | None) -> LedgerView | None:
    """Decode what `dump.lua` returned; None if nothing is there, or nothing that this version can read."""
    data, time, *parts = dumped
    meta = None if data is None else Meta.read(data)
    if meta is None:
        return None
    text = own_part((limit or b"?").decode(errors="replace"), address.metric)
    now = max(int(unpack_from("<d", time)[0]), meta.last)
    view = LedgerView(address, text, meta, now, [], [])
    for value, cooling, out, abandoned in zip(*(iter(parts),) * 4, strict=True):
        if value is None:
            continue
        stored = Stored(value, cooling, out)
        # What was written before a loss is void.
        if stored.epoch in (b"", meta.epoch):
            ledger = decode(stored)
            view.ledgers.append(ledger)
            view.lapses.append(int(abandoned or 0) + unnoted(stored, ledger, now))
    return view if view.ledgers or address.metric is None else None


def own_part(text: str, metric: str | None) -> str:
    """A metric's own limits, out of the text that is stored for display.

    >>> own_part("requests: 500/minute; tokens: 30000/minute; 5 concurrent", "tokens")
    '30000/minute; 5 concurrent'
    """
    if metric is None:
        return text
    own: list[str] = []
    inside = False
    for piece in text.split("; "):
        name, colon, rest = piece.partition(": ")
        inside = name == metric if colon else inside
        if inside:
            own.append(rest if colon else piece)
    return "; ".join(own) or text
