"""What a limiter says with every call to a shared engine, for all of its keys: its name, its rules, its leases."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headway.core.bucket import BucketRule
from headway.core.concurrency import ConcurrencyRule
from headway.core.fixed_window import FixedWindowRule
from headway.core.ledger import Rule
from headway.core.spacing import SpacingRule
from headway.core.window import WindowRule
from headway.engines.redis.client.batching import leave_closed, retire
from headway.engines.redis.client.ledger_client import COMPACT, LedgerClient, LedgerTerms
from headway.engines.redis.cluster.pause import ClusterPause
from headway.engines.redis.script import protocol
from headway.engines.redis.script.protocol import TICK
from headway.engines.redis.script.scripts import BUCKET, SPACING, Script, ledger_script
from headway.engines.weak_methods import weak_method
from headway.forks import on_fork

if TYPE_CHECKING:
    from headway.engines.base import LimiterTerms
    from headway.engines.redis.client.requests import Acquire
    from headway.engines.redis.client.round_trip import ClockSample, RoundTrip
    from headway.engines.redis.engine import Engine

registries: weakref.WeakSet[LimiterRegistry] = weakref.WeakSet()

MARGIN = 1.05
BATCH = 32
"""Clients that one call looks at, at most, to find idle ones; and as many that were compacted before."""
SLOWEST = 64
"""Calls until some are looked at again, when few were found."""
IDLE = 2_000_000_000
"""Nanoseconds without use after which a client is compacted to what has to be known of its ledger."""

MOST_STREAMS, STREAM = 4, 16
"""How many streams are kept for a compacted client, and the length of a name."""

Keys = tuple[str | None, ...]
CompactState = tuple[bytes, bytes, Any]
"""What `LedgerClient.remember` says and the names of its streams; the server that answered last; its release stream."""


class LimiterRegistry(LedgerTerms):
    """A limiter's part of every command."""

    def __init__(self, engine: Engine, terms: LimiterTerms) -> None:
        clock = terms.clock
        self.engine = engine
        self.name = terms.name
        self.clock = clock
        # Both are the limiter's methods, and the limiter is to be freed when its last user has gone.
        self.rules_for = None if terms.rules_for is None else weak_method(terms.rules_for)
        self.metrics = terms.metrics[0] is not None
        self.names = terms.metrics
        self.drift = engine.drift
        self.sharded = engine.sharded
        self.lease_ns = engine.lease_ns
        self.lease = float(engine.lease_ns // TICK)
        # For how long clients may hold tokens that the ledger has forgotten, by its clock.
        self.lease_ttl = -(-terms.lease_ttl_ns // TICK)
        self.timeout_ns = terms.timeout_ns
        self.on_loss = terms.on_loss
        self.max_quarantine = None if terms.max_quarantine_ns is None else terms.max_quarantine_ns // TICK
        self.notify = weak_method(terms.notify)
        # Of each key that was used and whose ledger may still be there: its client, or what is left of it. A cursor
        # goes over all keys that have clients (live), and another over all that were compacted once, whether they have
        # a client now or not. A client that was compacted while a thread still had it is detached.
        self.ledgers: dict[Keys, LedgerClient] = {}
        self.compact: dict[Keys, CompactState] = {}
        self.live_keys: list[Keys] = []
        self.compacted_keys: list[Keys] = []
        self.cursor = self.compact_cursor = 0
        self.pace = self.countdown = SLOWEST
        self._detached: weakref.WeakSet[LedgerClient] = weakref.WeakSet()
        # Held while a key moves from one to the other. Re-entrant: the garbage collector may end a permit meanwhile.
        self._lock = threading.RLock()
        # The requests that wait, whatever the key and the way to wait; and whether the limiter is closed.
        self.waiters: set[Acquire] = set()
        self.closed = False
        self.with_status = False
        # With metrics all ledgers share a slot, and a script can look whether the limiter is paused.
        self.pause_state = ClusterPause(self) if self.sharded and not self.metrics else None
        self.clock_samples: dict[bytes, ClockSample] = {}
        # What this process has declared so far.
        self.past_texts: set[bytes] = set()
        self._wall = (0.0, 0)
        self._stretch = 1 + clock.drift_ppm / 1e6 + engine.drift_ppm / 1e6
        self._resolution = max(1, int(clock.resolution * 1e9))
        self.declare(terms.text, terms.rules, terms.declared_ns)
        registries.add(self)

    def begin(self) -> None:
        """Without requests, waiters and leases; so it is in a forked child."""
        self.waiters.clear()
        if self.pause_state is not None:
            self.pause_state.begin()
        self._lock = threading.RLock()
        for ledger in self.all_clients():
            ledger.begin()

    def close(self) -> None:
        """Refuse new requests, and have the waiters notice it."""
        self.closed = True
        asks = set(self.waiters)
        for ledger in self.all_clients():
            asks.update(ledger.standing.values(), ledger.sleepers)
        for acquire in asks:
            # A request in flight sees that the limiter is closed when its reply is there.
            if acquire.verdict in (protocol.GRANTED, protocol.STANDING):
                acquire.withdraw()
                acquire.void = True
            acquire.wake()

    def declare(self, text: str, rules: tuple[Rule, ...], declared_ns: int | None = None) -> None:
        """Keep these limits from now on; of several declarations the last one governs."""
        self.text = text.encode()
        self.past_texts.add(self.text)
        self.rules = rules
        self.generation = float((time.time_ns() if declared_ns is None else declared_ns) // TICK)
        self._renew()

    def _renew(self) -> None:
        for ledger in self.all_clients():
            ledger.renew(self.rules_of(ledger.lookup_keys))

    def rules_of(self, keys: tuple[str | None, ...]) -> tuple[Rule, ...]:
        """The rules of a key, or of a combination of keys: some may have one of their own."""
        own: tuple[Rule, ...] | None = None if self.rules_for is None else self.rules_for(keys)
        return self.rules if own is None else own

    def can_queue(self, rules: tuple[Rule, ...]) -> bool:
        """Whether a request may have to wait in the queue.

        Alone, a bucket and a spacing promise a time to every request. A window that counts at the decision does, too;
        but another version of the same limit may hold its permits, and govern. With metrics no waiter is promised one.
        """
        return self.metrics or len(rules) > 1 or protocol.kind_of(rules[0]) not in (BUCKET, SPACING)

    def script_of(self, rules: tuple[Rule, ...], can_queue: bool, leases: bool) -> Script:
        return ledger_script(frozenset(protocol.kind_of(rule) for rule in rules), can_queue, leases)

    def text_of(self, rules: tuple[Rule, ...]) -> bytes:
        """The limits as they are written down beside the ledger, for people."""
        if rules == self.rules:
            return self.text
        parts = zip(self.names, rules, strict=True)
        return "; ".join(
            f"{name}: {rule.limit}" if name else str(rule.limit) for name, rule in parts
        ).encode()

    def allowance_of(self, rules: tuple[Rule, ...]) -> int:
        """How late after its slot a permit may still be spent, on our clock."""
        slack = [rule.allowance * TICK for rule in rules if isinstance(rule, SpacingRule) and rule.strict]
        return int(min([self.lease_ns, *slack]) * (1 - self.drift))

    def open_ledger(self, keys: Keys) -> LedgerClient:
        """A client for a key that has none: a new one, or one restored from what is left of a compacted one."""
        ledger = LedgerClient(self, self.redis_keys(keys), keys[0], self.rules_of(keys))
        ledger.lookup_keys = keys
        with self._lock:
            # In an order in which nothing is forgotten if a signal's handler raises.
            memory = self.compact.get(keys)
            if memory is not None:
                self._restore(ledger, memory)
            if keys not in self.ledgers:
                self.live_keys.append(keys)
                self.countdown -= SLOWEST // (BATCH // 4)
            found = self.ledgers.setdefault(keys, ledger)
            self.compact.pop(keys, None)
        return found

    def _restore(self, ledger: LedgerClient, memory: CompactState) -> None:
        known, ident, dropped = memory
        ledger.restore(known, ident)
        names, process = known[COMPACT.size :], self.engine.process
        # In a forked child, those of its parent are not its own.
        if names.startswith(process):
            ledger.spare = [names[at : at + STREAM] for at in range(0, len(names), STREAM)]
        if dropped is not None and dropped.stream.startswith(process):
            ledger.release_stream = dropped

    # -- idle clients ------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Look at some keys: compact idle ones to what has to be known of their ledgers, and forget those
        whose ledgers may be gone by now."""
        with self._lock:
            now, found = self.clock.now(), 0
            for _ in range(min(BATCH, len(self.live_keys))):
                self.cursor %= len(self.live_keys)
                ledger = self.ledgers.get(self.live_keys[self.cursor])
                if ledger is None or self._compact_ledger(ledger, now):
                    take_out(self.live_keys, self.cursor)
                    found += 1
                else:
                    self.cursor += 1
            for _ in range(min(BATCH, len(self.compacted_keys))):
                self.compact_cursor %= len(self.compacted_keys)
                keys = self.compacted_keys[self.compact_cursor]
                memory = self.compact.get(keys)
                if keys in self.ledgers or (memory is not None and expiry_of(memory) > now):
                    self.compact_cursor += 1
                else:
                    take_out(self.compacted_keys, self.compact_cursor)
                    self.compact.pop(keys, None)
                    found += 1
            self.pace = 1 if found > BATCH // 4 else min(2 * self.pace, SLOWEST)
            self.countdown = self.pace

    def _compact_ledger(self, ledger: LedgerClient, now: int) -> bool:
        """Compact a client that was idle for a while; whether it is not in the registry any more.

        A thread may have got it just before, and use it nonetheless: then it is detached. It works as another process
        would. Its batchers have streams of their own; what it learns, its successor learns too (`pass_on`); changed
        rules, pauses and the end of the limiter reach it as they reach all (`all_clients`). The release of a permit
        that was taken here travels with the successor's commands (`successor`), or alone if the successor knows another
        ledger; so do releases, unknown outcomes and retries that are still under way.
        """
        if not ledger.seen:
            ledger.seen = now
            return False
        if now - ledger.seen < IDLE or now - ledger.replied_at < IDLE:
            return False
        leave_closed(ledger)
        streams = retire(ledger)
        if streams is None:
            return False
        # First the flag: what is heard from now on is passed on, and what was heard before is seen here.
        ledger.compacted = True
        dropped = self.engine.pool_of(ledger).release_sender.streams.get(ledger, ledger.release_stream)
        known = ledger.remember() + b"".join(streams[:MOST_STREAMS])
        self.compact[ledger.lookup_keys] = (known, ledger.ident, dropped)
        if not ledger.was_compacted:
            self.compacted_keys.append(ledger.lookup_keys)
        self._detached.add(ledger)
        self.ledgers.pop(ledger.lookup_keys, None)
        return True

    def pass_on(self, ledger: LedgerClient) -> None:
        """A detached client has learned of its ledger."""
        with self._lock:
            successor = self.ledgers.get(ledger.lookup_keys) or self.open_ledger(ledger.lookup_keys)
            if successor is ledger:
                ledger.compacted = False  # the thread that compacted it was interrupted
            else:
                successor.merge_from(ledger)

    def successor(self, ledger: LedgerClient, epoch: bytes) -> LedgerClient:
        """The client that sends for a detached one, if it knows the same ledger. This never waits for a lock: the
        garbage collector may run it while this thread has another."""
        if not self._lock.acquire(blocking=False):
            return ledger
        try:
            if ledger.lookup_keys not in self.ledgers and ledger.lookup_keys not in self.compact:
                return ledger
            found = self.ledgers.get(ledger.lookup_keys) or self.open_ledger(ledger.lookup_keys)
            found.seen = 0
            return found if found.epoch == epoch else ledger
        except Exception:  # noqa: BLE001 - an override is the user's, and this is to say something, not to fail
            return ledger
        finally:
            self._lock.release()

    def all_clients(self) -> list[LedgerClient]:
        """All clients that may be in use."""
        with self._lock:
            return [*self.ledgers.values(), *self._detached]

    def known(self) -> int:
        """How many keys have ledgers, as far as this process knows."""
        with self._lock:
            return len(self.ledgers) + len(self.compact)

    def redis_keys(self, keys: tuple[str | None, ...]) -> tuple[bytes, ...]:
        """The Redis keys: the root, and one for each metric's ledger. All have one hash tag, so they share a slot."""
        space, name = self.engine.namespace, escape(self.name)
        if not self.metrics:
            key = "" if keys[0] is None else f":{escape(keys[0])}"
            return (f"{space}:{{{name}{key}}}".encode(),)
        root = f"{space}:{{{name}}}"
        metrics = [escape(name or "") for name in self.names]
        own = [
            f"{root}/{metric}" if key is None else f"{root}/{metric}:{escape(key)}"
            for metric, key in zip(metrics, keys, strict=True)
        ]
        return tuple(pool.encode() for pool in (root, *own))

    def records(self, ledger: LedgerClient, round_trip: RoundTrip) -> bytes:
        if not ledger.uses_wall_clock:
            return ledger.frame.records
        sample = self.clock_samples.get(round_trip.ident)
        ticks, at = (sample.ticks, sample.received) if sample is not None else self._wall
        if not ticks:
            return ledger.records(time.time_ns() // TICK)
        return ledger.records(int(ticks + (round_trip.sent - at) / TICK))

    def server_time(self, ticks: float, at: int) -> None:
        """The edges that we sent were those of another period: go by this."""
        self._wall = (ticks, at)
        self.clock_samples.clear()

    def stretched(self, ticks: float) -> int:
        """A wait by the server's clock as nanoseconds on ours: never shorter, whichever of the two runs fast."""
        return int(ticks * TICK * self._stretch) + self._resolution if ticks > 0 else 0

    def refine(self, acquire: Acquire) -> None:
        """Reckon a promised slot anew, from the last time the server was heard: the shorter ago, the less the clocks
        can differ. What was reckoned before stays true."""
        sample = self.clock_samples.get(acquire.ledger.ident)
        if sample is None or sample.received <= acquire.replied_at or not acquire.due or acquire.void:
            return
        left = acquire.due - sample.ticks
        drift = self.engine.drift
        acquire.slot = min(acquire.slot, sample.received + self.stretched(left))
        spread = 1 - drift if left > 0 else 1 + drift
        acquire.expires = max(
            acquire.expires, sample.sent + int(left * TICK * spread) + acquire.ledger.allowance_ns
        )

    def sure_for(self, ledger: LedgerClient) -> int:
        """For how many nanoseconds a slot can be foretold, until clocks may differ by a good part of its allowance."""
        return int(ledger.allowance_ns / (16 * self.engine.drift)) if self.engine.drift else self.lease_ns

    def backoff(self, acquire: Acquire) -> tuple[int | None, int]:
        """After a denial: nanoseconds until it may be worth to request again, and over how many to spread the retries.

        None where asking again would not help in time.
        """
        rule = acquire.ledger.rules[0]
        if not isinstance(rule, SpacingRule) or len(acquire.ledger.rules) > 1:
            return None, 0
        wait, reserved = acquire.raw_rows[0][1], acquire.raw_rows[0][3]
        if reserved < rule.max_reserved:
            return None, 0
        return self.stretched(max(1.0, wait - rule.max_reserved * rule.step)), rule.step * TICK

    def local_time(self, ledger: LedgerClient, ticks: float, latest: int) -> int:
        """When, on our clock, the server's showed `ticks`, at the earliest; `latest` if that is not known."""
        sample, drift = self.clock_samples.get(ledger.ident), self.engine.drift
        if sample is None:
            return latest
        passed = (ticks - sample.ticks) * TICK
        return min(latest, sample.sent + int(passed * (1 - drift if passed > 0 else 1 + drift)))

    def quarantine(self, ledger: LedgerClient, now: float = 0.0) -> tuple[float, float]:
        """How long until all that was forgotten is harmless, capped; and uncapped, if the cap cut it short (else 0).

        `now` is the server's time: a period of the calendar ends by that, and our own clock may be wrong. 0 if it is
        not known.
        """
        now = int(now) or time.time_ns() // TICK
        needed = max(self._harmless(rule, now) for rule in ledger.rules) * MARGIN + 100_000
        # A client may have been lent its tokens just before the loss, and spend them until its lease is over.
        needed += max(self.lease_ttl, ledger.lent_ttl) * MARGIN
        if self.max_quarantine is not None and needed > self.max_quarantine:
            return float(self.max_quarantine), float(int(needed))
        return float(int(needed)), 0.0

    def _harmless(self, rule: Rule, now: int) -> float:
        match rule:
            case WindowRule():
                return rule.gap + (rule.transit if holds(rule) else self.lease)
            case BucketRule():
                return rule.room + self.lease
            case SpacingRule():
                return rule.step + self.lease
            case FixedWindowRule():
                return float(rule.window_of(now)[1] - now)
            case ConcurrencyRule():
                return rule.lease
        return self.lease


def holds(rule: Rule) -> bool:
    """Whether its permits may be out."""
    return rule.held or rule.bracketed


def after_fork() -> None:
    """In a forked child: streams, places in queues and leases are the parent's."""
    for registry in list(registries):
        registry.begin()


on_fork(after_fork)


def take_out(live_keys: list[Keys], at: int) -> None:
    """Another takes its place."""
    last = live_keys.pop()
    if at < len(live_keys):
        live_keys[at] = last


def expiry_of(memory: CompactState) -> int:
    """Until when the ledger must be there, on our clock."""
    return int.from_bytes(memory[0][COMPACT.size - 16 : COMPACT.size - 8], "little", signed=True)


def escape(text: str) -> str:
    """A name that cannot be mistaken for two, nor end a hash tag: "a:b" with key "c" is not "a" with key "b:c".

    >>> escape("user:42"), escape("{x}"), escape("/tasks/send")
    ('user%3A42', '%7Bx%7D', '%2Ftasks%2Fsend')
    """
    return (
        quote(text, safe="@!$'()*,;= +&~.-_[]<>|^\\\"`?#", errors="surrogatepass")
        if not text.isalnum() or not text.isascii()
        else text
    )
