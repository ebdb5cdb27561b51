# mypy: disable-error-code="var-annotated"
"""Clients that hold tokens of a shared ledger, driven by hand: the core's `Holder`, sent through the seam."""

import contextlib

from headway.clock import SYSTEM
from headway.core.holder import Holder, Terms
from headway.core.limits import AllOf
from headway.engines.base import LimiterTerms, Sync
from headway.errors import EngineUnavailable

SECOND = 10**9


def limits_of(limit):
    return limit.limits if isinstance(limit, AllOf) else (limit,)


class LeaseClient:
    """One client: a holder for each rule of one key; limits by metric in a dict."""

    def __init__(
        self, engine, limit, name, client, *, ttl=SECOND, key=None, on_loss="quarantine", timeout=2 * SECOND
    ):
        self.terms = Terms(
            ttl=ttl, margin=ttl // 10, predict=ttl, resend=ttl // 6, drift_ppm=250, ledger_drift_ppm=1000
        )
        named = limit if isinstance(limit, dict) else {}
        self.limits = tuple(named.values()) or limits_of(limit)
        rules = [rule for one in self.limits for rule in engine.rules_of(one)]
        self.keys = (key,) * max(1, len(named))
        self.quarantines = []
        metrics = tuple(named) or (None,) * len(self.limits)
        parts = zip(metrics, self.limits, strict=True)
        text = "; ".join(f"{metric}: {one}" if metric else str(one) for metric, one in parts)
        terms = LimiterTerms(
            name,
            SYSTEM,
            text,
            metrics,
            tuple(rules),
            None,
            timeout,
            on_loss,
            None,
            lambda *told: self.quarantines.append(told),
            ttl,
        )
        self.ledgers = engine.open(terms)
        self.holders = [Holder(limit, client, self.terms) for limit in self.limits]
        self.synced = None
        self.uses = []

    @property
    def held(self):
        return [holder.held for holder in self.holders]

    def want(self, count):
        """As if so many had been asked for just now."""
        for holder in self.holders:
            for _ in range(count):
                holder.ask(SYSTEM.now(), 1)

    def sync(self, *, close=False, want=None):
        """One call for each rule, and its answers; `want` is what it says instead of what it predicts."""
        now = SYSTEM.now()
        for holder in self.holders:
            ask = holder.close(now) if close else holder.call(now)
            if want is not None:
                holder.pending = ask._replace(want=1000 * want)
        return self.send(tuple(holder.pending for holder in self.holders))

    def send(self, asks):
        self.synced = self.ledgers.send(Sync(self.keys, asks, self.terms.ttl, self.terms.predict))
        for holder, answer in zip(self.holders, self.synced.answers, strict=True):
            if answer is not None:
                holder.answered(SYSTEM.now(), answer)
        return self.synced.answers

    def step(self):
        """Call if it is time to; a call whose answer is lost is repeated by a later step."""
        now = SYSTEM.now()
        if any(holder.next_call(now) <= now or holder.grown(now) for holder in self.holders):
            with contextlib.suppress(EngineUnavailable):
                self.sync()

    def use(self):
        """Spend a token of each rule, if there is one: whether there was."""
        now = SYSTEM.now()
        if max([holder.ask(now, 1) for holder in self.holders]) > 0:
            return False
        for holder in self.holders:
            holder.tokens.ledger.take(now, 1)
        if SYSTEM.now() >= min(holder.stop for holder in self.holders):
            return False
        self.uses.append((now / SECOND, SYSTEM.now() / SECOND))
        return True


def most_in(uses, window):
    """The most uses that certainly were in one window; each was some time between two."""
    return max(
        (sum(first >= start and last < start + window for first, last in uses) for start, _ in uses),
        default=0,
    )


def take(limiter, count):
    """Up to so many permits, and no more of them than there are: those that were granted."""
    tried = [limiter.try_acquire() for _ in range(count)]
    return [permit for permit in tried if permit]


def end(permits):
    for permit in permits:
        permit.complete()
