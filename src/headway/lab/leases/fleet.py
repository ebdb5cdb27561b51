"""One fleet, run: clients that hold leases, a ledger, and the way between them, in virtual time.

Everything around the two state machines is simulated, and they are the real ones (`headway.core.holder`,
`headway.core.lease`). A fleet is a heap of moments: a request comes to a client, a client has something to say, a
call or an answer arrives. Requests are tried and never wait: what is refused is lost, which is the hardest traffic
there is. With `patience` they wait for a token up to so long, as `acquire(timeout=...)` does. Every clock may be
skewed. Times are kept as true time; an audit reads them on the ledger's clock, since that is the clock by which the
limit is promised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any, Self

from headway.core.holder import Holder, Terms
from headway.core.lease import Answer, LeaseLedger, Sync
from headway.core.ledger import FOREVER
from headway.core.lendable import tokens_to_lend
from headway.core.limits import Limit
from headway.lab.clocks import BILLION, Skewed
from headway.lab.leases.traffic import Traffic

TRUE = Skewed(1, 0, ((0, BILLION),))


class Network:
    """So long each way; a seeded one may do worse."""

    def __init__(self, one_way_ns: int = 100_000_000) -> None:
        self.one_way = one_way_ns

    def arrivals(self, at: int) -> Sequence[int]:
        """When what is sent now arrives: once, not at all, or more than once."""
        return (at + self.one_way,)


class RoughNetwork(Network):
    """Loses one message in five, repeats one in ten, and delays one in ten by up to `longest`."""

    def __init__(self, rng: Random, one_way_ns: int, longest_ns: int, lost: float = 0.2) -> None:
        super().__init__(one_way_ns)
        self.rng = rng
        self.longest = longest_ns
        self.lost = lost
        self.calm_from = 1 << 62  # from this time on nothing goes wrong any more

    def arrivals(self, at: int) -> Sequence[int]:
        if at >= self.calm_from:
            return (at + self.one_way,)
        copies = 2 if self.rng.random() < 0.1 else 1
        return [at + self._delay() for _ in range(copies) if self.rng.random() >= self.lost]

    def _delay(self) -> int:
        if self.rng.random() < 0.1:
            return self.rng.randrange(self.longest + 1)
        return self.rng.randrange(self.one_way // 2, 2 * self.one_way + 1)


class Client:
    """One client of the fleet, and what is known of it at the end."""

    __slots__ = (
        "alive",
        "asked",
        "calls",
        "clock",
        "first_answer",
        "holder",
        "moves",
        "passed",
        "stopped",
        "timer",
        "traffic",
    )

    def __init__(self, holder: Holder, traffic: Traffic, clock: Skewed) -> None:
        self.holder = holder
        self.traffic = traffic
        self.clock = clock
        self.timer = 1 << 200
        self.alive = True
        self.stopped = 0  # until when
        self.first_answer = -1
        self.asked = 0  # since the first answer, as is `passed`
        self.passed = 0
        self.calls = 0
        self.moves = 0  # answers and calls that changed what it holds


class Fleet:
    """Clients with traffic of their own under one limit.

    >>> from headway.core.limits import Window
    >>> from headway.lab.leases.traffic import even
    >>> fleet = Fleet(Window(20, per=1, remote=False), [even(10)]).run(5)
    >>> len(fleet.times), fleet.clients[0].asked == fleet.clients[0].passed
    (47, True)
    """

    def __init__(
        self,
        limit: Limit,
        traffics: Sequence[Traffic],
        terms: Terms | None = None,
        network: Network | None = None,
        *,
        ledger_clock: Skewed = TRUE,
        clocks: Sequence[Skewed] = (),
        patience: int = 0,
        holder: type[Holder] = Holder,
        lender: type[LeaseLedger] = LeaseLedger,
    ) -> None:
        self.limit = limit
        self.terms = terms or Terms(drift_ppm=0, ledger_drift_ppm=0, resolution=0)
        self.network = network or Network()
        self.ledger_clock = ledger_clock
        self.patience = patience
        self.holder = holder
        tokens = tokens_to_lend(limit, self.terms.resolution, self.terms.ledger_drift_ppm, self.terms.ttl)
        self.ledger = lender(tokens, self.terms.ttl, self.terms.ledger_drift_ppm, self.terms.predict)
        self.ledger_now = 0
        self.heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.pushed = 0
        self.t = 0
        self.times: list[int] = []  # of what passed, on the ledger's clock
        self.clients: list[Client] = []
        for i, traffic in enumerate(traffics):
            self.join(traffic, clocks[i] if clocks else TRUE)

    def push(self, at: int, happen: Callable[..., None], *what: Any) -> None:
        self.pushed += 1
        heappush(self.heap, (at, self.pushed, happen, what))

    def join(self, traffic: Traffic, clock: Skewed) -> Client:
        client = Client(self.holder(self.limit, str(len(self.clients)), self.terms), traffic, clock)
        self.clients.append(client)
        self._next_request(client)
        return client

    def run(self, seconds: float) -> Self:
        end = round(seconds * BILLION)
        heap = self.heap
        while heap and heap[0][0] < end:
            self.t, _, happen, what = heappop(heap)
            happen(*what)
        self.t = end
        return self

    # -- what happens

    def _next_request(self, client: Client) -> None:
        at = next(client.traffic, None)
        if at is not None:
            self.push(max(at, self.t), self.request, client)

    def request(self, client: Client) -> None:
        if not client.alive:
            return
        self._next_request(client)
        if self.t < client.stopped:
            return
        now = client.clock.reading(self.t)
        holder = client.holder
        wait = holder.ask(now, 1)
        if wait == 0:
            self.spend(client, now)
        elif self.patience and client.first_answer >= 0:
            self.wait(client, wait, self.t + self.patience)
        if client.first_answer >= 0:
            client.asked += 1
            client.passed += wait == 0
        if holder.grown(now):
            self.call(client, now)
        elif client.timer > self.t:
            self.look(client, now)

    def wait(self, client: Client, wait: int, until: int) -> None:
        # A wait of 1 is none that is known: look again after a while.
        at = self.t + max(wait, BILLION // 100)
        if at <= until:
            self.push(at, self.retry, client, until)

    def retry(self, client: Client, until: int) -> None:
        now = client.clock.reading(self.t)
        wait = client.holder.wait(now, 1)
        if wait == 0:
            self.spend(client, now)
            client.passed += 1
        else:
            self.wait(client, wait, until)

    def spend(self, client: Client, now: int) -> None:
        client.holder.tokens.ledger.take(now, 1)
        self.times.append(self.ledger_clock.reading(self.t))

    def look(self, client: Client, now: int) -> None:
        """Set the client's timer to when it has something to say."""
        at = client.holder.next_call(now)
        if at >= FOREVER:
            return
        at = self.t if at <= now else max(self.t + 1, client.clock.when(at))
        if at < client.timer:
            client.timer = at
            self.push(at, self.timer, client, at)

    def timer(self, client: Client, due: int) -> None:
        if not client.alive or client.timer != due:
            return
        client.timer = 1 << 200
        if self.t < client.stopped:
            client.timer = client.stopped
            self.push(client.stopped, self.timer, client, client.stopped)
            return
        now = client.clock.reading(self.t)
        if client.holder.next_call(now) <= now:
            self.call(client, now)
        else:
            self.look(client, now)

    def call(self, client: Client, now: int) -> None:
        call = client.holder.call(now)
        client.calls += 1
        client.moves += bool(call.back)
        for at in self.network.arrivals(self.t):
            self.push(at, self.heard, client, call)
        self.look(client, now)

    def heard(self, client: Client, call: Sync) -> None:
        """A call arrives at the ledger."""
        self.ledger_now = max(self.ledger_now, self.ledger_clock.reading(self.t))
        answer = self.ledger.sync(self.ledger_now, call)
        if answer is not None:
            for at in self.network.arrivals(self.t):
                self.push(at, self.answered, client, answer)

    def answered(self, client: Client, answer: Answer) -> None:
        if not client.alive:
            return
        if self.t < client.stopped:
            self.push(client.stopped, self.answered, client, answer)
            return
        now = client.clock.reading(self.t)
        if client.holder.answered(now, answer):
            client.moves += bool(answer.tokens)
            if client.first_answer < 0:
                client.first_answer = self.t
            self.look(client, now)
