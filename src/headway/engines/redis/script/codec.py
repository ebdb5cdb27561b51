"""A ledger as it is stored on the server, and as the core keeps it: one from the other, and back.

The scripts decide alone. But code that changes a limit, or shows a ledger, needs what is written once, in the core:
what becomes of permits under another rule, how long a wait is. So the stored numbers are read into the core's own
rule and ledger, and written back as the scripts left them.

    what is stored   the rule (`protocol.record_of`, 72 bytes), then, if the ledger is not in its root, the epoch of the
                     root (24 bytes), then the state: numbers, as each kind's `open` in `lua/` reads them
    two lists        runs of (time, count), 16 bytes each: `cooling` (<key>:c<i>) and `out` (<key>:o<i>)

    bucket           tat, part, latest, tally [, lent]
    window           free, tally, ends of cooling, ends of out, enterable, lost [, lent, whether runs came out of order]
    spacing          last, slack, before, older, tally
    fixed window     ends, used, tally
    concurrency      lease, ends of out [, lent]

where `lent` is how many tokens are with clients: the stored rule is that of the whole limit, and a bucket and a
concurrency limit are opened under that of what lies here (`rule_here`). A fixed window counts them as used. The ends
of a list are its size, its total, its first time, its last time and the last count. What never was is -2**52 there,
and -2**62 in the core.
"""

from __future__ import annotations

from struct import pack, unpack, unpack_from
from typing import TYPE_CHECKING, NamedTuple

from headway.core.bucket import BucketLedger, BucketRule
from headway.core.concurrency import ConcurrencyLedger, ConcurrencyRule
from headway.core.fixed_window import FixedWindowLedger
from headway.core.ledger import EXACT, LONG_AGO
from headway.core.rules import rule_from_record
from headway.core.spacing import SpacingLedger
from headway.core.tokens import units_of
from headway.core.window import WindowLedger
from headway.engines.redis.script.protocol import META, RECORD, TICK, record_of
from headway.engines.redis.script.scripts import BUCKET, CONCURRENCY, FIXED_WINDOW, SPACING, WINDOW

if TYPE_CHECKING:
    from headway.core.ledger import Ledger, Rule

EPOCH = 24
# Which of a record's six own numbers are the rule's. Of a calendar quota the first is a checksum of its period.
_KINDS = {
    BUCKET: ("bucket", slice(0, 5)),
    WINDOW: ("window", slice(0, 6)),
    SPACING: ("spacing", slice(0, 3)),
    FIXED_WINDOW: ("fixed_window", slice(1, 4)),
    CONCURRENCY: ("concurrency", slice(0, 1)),
}


class Meta(NamedTuple):
    """What the root says of all its ledgers (field `m`); times are ticks, and 0 where there is none."""

    format: float
    seq: float
    last: float
    quarantined: float
    paused: float
    expires: float
    waiting: float
    shift: float
    governed: float
    born: float
    epoch: bytes
    ident: bytes

    @classmethod
    def read(cls, data: bytes) -> Meta:
        return cls._make((*META.unpack_from(data), data[META.size :]))

    def pack(self) -> bytes:
        return META.pack(*self[:-1]) + self.ident


class Stored(NamedTuple):
    """What the server has of one ledger."""

    value: bytes
    cooling: bytes = b""
    out: bytes = b""

    @property
    def epoch(self) -> bytes:
        """The epoch of the root for which it was written, of a ledger that has a key of its own."""
        return self.value[RECORD.size : RECORD.size + EPOCH] if self.key != 1 else b""

    @property
    def kind(self) -> int:
        return int(RECORD.unpack_from(self.value)[0])

    @property
    def lent(self) -> int:
        """How many of its tokens are with clients; not of a fixed window, which does not tell them from used ones."""
        at = {BUCKET: 4, WINDOW: 14, CONCURRENCY: 6}.get(self.kind)
        state = self.value[RECORD.size + len(self.epoch) :]
        return 0 if at is None or len(state) <= 8 * at else int(unpack_from("<d", state, 8 * at)[0])

    @property
    def key(self) -> int:
        """Which of the keys it is in, counted from 1, which is the root."""
        return int(RECORD.unpack_from(self.value)[1])


def rule_in(stored: Stored) -> Rule:
    """The rule that a ledger is kept by; of its limit only the numbers are known."""
    kind, _, capacity, *own = RECORD.unpack_from(stored.value)
    name, span = _KINDS[int(kind)]
    return rule_from_record(name, int(capacity), tuple(map(int, own[span])), TICK)


def rule_here(rule: Rule, lent: int) -> Rule:
    """The rule of what is left of a limit, while so many of its tokens are with clients."""
    if lent:
        match rule:
            case BucketRule():
                per = rule.whole * rule.parts + rule.part
                return units_of(rule.capacity, per, rule.parts, rule.capacity - lent, TICK)
            case ConcurrencyRule():
                return rule_from_record("concurrency", max(0, rule.capacity - lent), (rule.lease,), TICK)
    return rule


def decode(stored: Stored) -> Ledger:
    """The ledger, under the rule that it is kept by, as far as it is not lent."""
    ledger = rule_here(rule_in(stored), stored.lent).open()
    start = RECORD.size + len(stored.epoch)
    first, *rest = numbers = _ints(stored.value[start:])
    match ledger:
        case BucketLedger():
            tat, part, latest, tally, *_ = numbers
            ledger.restore((_past(tat), part, _past(latest), tally), tally)
        case WindowLedger():
            enterable, lost = (*rest, 0, 0)[11:13]  # a ledger of an earlier version has none
            ledger.restore((first, enterable, lost, *_ints(stored.cooling), -1, *_ints(stored.out)), rest[0])
        case SpacingLedger():
            slack, before, older, tally = rest
            ledger.restore((_past(first), slack, LONG_AGO, before, older), _past(tally))
        case FixedWindowLedger():
            used, tally = rest
            ledger.restore((_past(first), used), tally)
        case ConcurrencyLedger():
            total = rest[1]
            ledger.restore((total, first, *_ints(stored.out)), 0)
    return ledger


def unnoted(stored: Stored, ledger: Ledger, now: int) -> int:
    """How many of its permits have come back without an end since it was stored, so that no script has counted them."""
    return sum(_ints(stored.out)[1::2]) - ledger.in_flight(now)


def encode(
    ledger: Ledger, key: int, now: int, epoch: bytes = b"", rule: Rule | None = None, lent: int = 0
) -> Stored:
    """What to store; `key` says which of the keys it is in, `now` (ticks) in which period of the calendar we are.

    `rule` is that of the whole limit, where `lent` of its tokens are with clients.
    """
    front = record_of(rule or ledger.get_rule(), key, now) + (epoch if key != 1 else b"")
    more = (lent,) if lent else ()
    state: tuple[int, ...]
    match ledger:
        case BucketLedger():
            state = (_gone(ledger.tat), ledger.part, _gone(ledger.latest), ledger.tally, *more)
            return Stored(front + _doubles(state))
        case WindowLedger():
            cooling, out = ledger.cooling.pairs(), () if ledger.out is None else ledger.out.pairs()
            state = (ledger.free, ledger.tally, *_ends(cooling), *_ends(out), ledger.enterable, ledger.lost)
            if ledger.lent or ledger.unordered:
                state += (ledger.lent, ledger.unordered)
            return Stored(front + _doubles(state), _doubles(cooling), _doubles(out))
        case SpacingLedger():
            state = (_gone(ledger.last), ledger.slack, ledger.before, ledger.older, _gone(ledger.tally))
            return Stored(front + _doubles(state))
        case FixedWindowLedger():
            return Stored(front + _doubles((_gone(ledger.ends), ledger.used, ledger.tally)))
        case ConcurrencyLedger() if ledger.leases is not None:
            out = ledger.leases.pairs()
            return Stored(front + _doubles((ledger.lease, *_ends(out), *more)), b"", _doubles(out))
    raise TypeError(f"no script keeps {ledger!r}")


def _ends(pairs: tuple[int, ...]) -> tuple[int, ...]:
    """What is kept with the state of a list of runs, so that a decision seldom has to look at the list."""
    return (len(pairs) // 2, sum(pairs[1::2]), pairs[0], pairs[-2], pairs[-1]) if pairs else (0, 0, -1, -1, 0)


def _doubles(values: tuple[int, ...]) -> bytes:
    return pack(f"<{len(values)}d", *values)


def _ints(data: bytes) -> tuple[int, ...]:
    return tuple(map(int, unpack(f"<{len(data) // 8}d", data)))


def _past(time: int) -> int:
    return LONG_AGO if time == -EXACT else time


def _gone(time: int) -> int:
    return -EXACT if time == LONG_AGO else time
