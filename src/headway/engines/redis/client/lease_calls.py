"""Leases of tokens over the wire: a client's calls as the script reads them, and its answers as the client does.

The core and the script count in the ledger's own ticks. What lies between them and a client is the drift of the two
clocks, and that ticks are longer than nanoseconds. Both only ever make a token later: what is handed back is stretched
and rounded up on its way in, what is granted is stretched on its way out (`headway.core.tokens`), and a TTL is rounded
down. So a script has no part in it.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from headway.core.lease import Answer
from headway.core.lendable import refusal
from headway.core.tokens import incoming, outgoing
from headway.engines.redis.client.requests import Request, rows_of, rows_said
from headway.engines.redis.script import protocol
from headway.engines.redis.script.protocol import TICK, numbers
from headway.engines.redis.script.scripts import LENDABLE
from headway.errors import InvalidLimit

if TYPE_CHECKING:
    from headway.core import lease
    from headway.engines import base
    from headway.engines.base import Row
    from headway.engines.redis.client.ledger_client import LedgerClient, Reply
    from headway.engines.redis.client.requests import RawRow


class SyncLeases(Request):
    """One call for each rule that has one (`base.Sync`), and its answer (`base.Synced`)."""

    def __init__(self, ledger: LedgerClient, command: base.Sync) -> None:
        for rule, ask in zip(ledger.rules, command.asks, strict=True):
            if ask is not None and protocol.kind_of(rule) not in LENDABLE:
                raise InvalidLimit(repr(rule.limit), None, *refusal(rule.limit))
        ledger.lend()
        self.drift_ppm = ceil(ledger.registry.engine.drift_ppm)
        self.width = len(command.asks)
        self.answers: tuple[Answer | None, ...] = ()
        self.sent_ns = self.paused_ns = self.quarantined_ns = 0
        self.quarantine = 0.0
        self.raw_rows: list[RawRow] = []
        said = numbers(protocol.SYNC, command.ttl_ns // TICK, max(1, command.predict_ns // TICK))
        Request.__init__(self, ledger, said + b"".join(map(self._encode_call, command.asks)))

    def _encode_call(self, ask: lease.Sync | None) -> bytes:
        if ask is None:
            return numbers(0)
        name = ask.client.encode()
        back = incoming(ask.back, self.drift_ppm, TICK)
        head = (ask.seq, ask.attempt, ask.lease, ask.want, ask.holding, ask.closing, len(name), len(back))
        pairs = [number for count, after in back for number in (count, -(-after // TICK))]
        return numbers(1, *head) + name + bytes(-len(name) % 8) + numbers(*pairs)

    def apply_reply(self, reply: Reply, said: tuple[float, ...], position: int) -> int:
        registry = self.ledger.registry
        answers: list[Answer | None] = []
        for _ in range(self.width):
            answered, position = said[position], position + 1
            if not answered:
                answers.append(None)
                continue
            seq, attempt, number, recall, ttl, again, void, count = map(int, said[position : position + 8])
            position += 8
            pairs = said[position : position + 2 * count]
            position += 2 * count
            tokens = tuple((int(pairs[i]), int(pairs[i + 1]) * TICK) for i in range(0, 2 * count, 2))
            answers.append(
                Answer(
                    seq,
                    attempt,
                    number,
                    outgoing(tokens, self.drift_ppm),
                    recall,
                    ttl * TICK,
                    again * TICK,
                    bool(void),
                )
            )
        self.answers = tuple(answers)
        self.raw_rows, position = rows_of(reply, said, position, self.width)
        self.sent_ns = reply.since
        self.paused_ns = registry.stretched(reply.pause)
        self.quarantine = reply.quarantine
        self.quarantined_ns = registry.stretched(reply.quarantine)
        self.done = True
        return position

    def rows(self) -> list[Row]:
        return rows_said(self.ledger, self.raw_rows)

    def reason(self) -> str:
        if self.quarantined_ns > 0:
            return "quarantine"
        return "paused" if self.paused_ns > 0 else "limit"

    def in_doubt(self) -> float:
        return max(0.0, -self.quarantine) * TICK / 1e9
