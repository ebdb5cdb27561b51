"""A ledger of an engine as a person sees it, without its limiter: for `headway top` and `headway inspect`.

An engine decodes what it has stored into a core ledger, so nothing is computed here that the core computes already.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import singledispatch
from typing import NamedTuple, Protocol

from headway.core.bucket import BucketLedger
from headway.core.ledger import FOREVER, Ledger
from headway.core.spacing import SpacingLedger
from headway.core.window import WindowLedger


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


class Loan(NamedTuple):
    """What clients hold of one ledger, by the number of its rule: how many clients, how many tokens of how many, and
    until when at most."""

    rule: int
    clients: int = 0
    tokens: int = 0
    of: int = 0
    until: int = 0


@dataclass(slots=True)
class LedgerView:
    """One key's ledgers as they were at `now`: one for each rule of a combined limit.

    `lapses` has, for each of them, the number of permits that came back without an end; `loans` what clients hold.
    """

    address: Address
    limit: str
    meta: Meta
    now: int
    ledgers: list[Ledger]
    lapses: list[int]
    loans: list[Loan]

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
        binding = self.binding
        if binding is None:
            return None
        return next(
            loan.of for ledger, loan in zip(self.ledgers, self.loans, strict=True) if ledger is binding
        )

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
        waits = [self.held_up]
        for ledger, loan in zip(self.ledgers, self.loans, strict=True):
            wait = ledger.wait(self.now, 1)
            # What clients hold may come back at any time.
            waits.append(min(wait, 1) if loan.tokens else wait)
        return max(waits) if max(waits) < FOREVER else None

    @property
    def exact(self) -> bool:
        """Whether `wait` is exact: while permits are out, or callers wait, it is a lower bound."""
        if self.meta.waiting or (self.lent and self.wait):
            return False
        return all(ledger.exact(self.now, 1) for ledger in self.ledgers)

    @property
    def holders(self) -> int:
        """Clients that hold tokens, or ask for some."""
        return max((loan.clients for loan in self.loans), default=0)

    @property
    def lent(self) -> int:
        """Tokens that clients hold; under several rules, of the one of which they hold the most."""
        return max((loan.tokens for loan in self.loans), default=0)

    @property
    def lent_for(self) -> int:
        """Ticks until the last of them is back, if no client is heard of any more."""
        ends = [loan.until - self.now for loan in self.loans if loan.clients]
        return max([0, *ends])


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
    if rule.capacity == 0:
        return 0  # all of it is lent
    return max(0, -(-ahead * rule.parts // (rule.whole * rule.parts + rule.part)))


@reserved.register
def _(ledger: WindowLedger, now: int) -> int:  # noqa: ARG001
    return max(0, -ledger.free)


def order(address: Address) -> tuple[str, str, str]:
    return address.name, address.metric or "", address.key or ""


def matches(address: Address, wanted: str | None) -> bool:
    """Whether the pattern or part of a name, `wanted`, fits this address.

    >>> found = Address(b"headway:{api:alice}", b"headway:{api:alice}", "api", "alice", None)
    >>> matches(found, "api*"), matches(found, "lic"), matches(found, "bob")
    (True, True, False)
    """
    if wanted is None:
        return True
    name = address.label if address.key is None else f"{address.label}:{address.key}"
    return fnmatchcase(name, wanted) or wanted in name


class Holding(NamedTuple):
    """What one client holds of one rule's ledger; `wants` is in thousandths of tokens, `until` in ticks."""

    client: str
    rule: int
    tokens: int
    wants: int
    until: int


@dataclass(frozen=True, slots=True)
class LedgerClients:
    """The waiters and the clients of a ledger, and what else is stored beside it."""

    epoch: str
    """A ledger is named after the stream and the number of the command that began it."""
    server: str
    waiting: dict[str, int]
    """How many of the first waiters are of which process."""
    granted: int
    """Waiters that were called and have not answered yet."""
    streams: dict[str, int]
    """When each stream of commands was heard of last, in ticks."""
    ttl_ms: int
    stored_in: str
    holders: list[Holding]
    """Those that hold tokens, by the end of their leases; the first ones, where there are many."""


class Scanner(Protocol):
    """Reads all ledgers that an engine keeps, without changing them."""

    complete: bool
    """Whether every key has been seen once."""

    @property
    def where(self) -> str:
        """The engine's address, without passwords."""

    def search(self, most_steps: int | None = ...) -> None:
        """Look for ledgers, from where the last search ended."""

    def addresses(self, wanted: str | None = None) -> list[Address]:
        """Those that are known and fit a pattern, or a part of a name or key."""

    def of(self, name: str, key: str | None) -> list[LedgerView]:
        """A limiter's ledgers of a key."""

    def read(self, addresses: list[Address]) -> list[LedgerView]:
        """The ledgers at these addresses, as far as they are still there."""

    def clients(self, view: LedgerView) -> LedgerClients:
        """The waiters and clients of a ledger."""

    def reset(self, views: list[LedgerView]) -> int:
        """Make the ledgers of one limiter and key as new; how many there were, or -1 if they are gone."""
