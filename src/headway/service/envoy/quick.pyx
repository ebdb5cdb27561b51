# cython: language_level=3, binding=False, boundscheck=False, wraparound=False, cdivision=True
"""The usual request of an Envoy, decided in one step: bytes in, bytes out, and no object of a message in between.

`decide` is the whole truth about a request: any engine, refunds, overdrafts, overrides, looks. Nearly all requests need
none of that: some descriptors, each of which takes hits of a limit in memory. And they repeat: an Envoy that asks for
the same user sends the same bytes. So what a request comes to (a *plan*: the ledgers' keys, the limits as they are
answered, the figures) is made once, by the same code as for every other request, and kept under its bytes. What is
left for each request is the decision itself:

    how long each ledger would have to be waited for      nothing is taken yet
    if none denies that counts, take from each            all or nothing, and nothing comes in between
    remaining and reset of each ledger, as bytes          the figures are those of this very moment

Nothing in here lets other threads or tasks run between the first line and the last (but a calendar, for windows that
follow it). What is not so simple is left to `decide`, by answering None: a plan that has something else in it, a ledger
for a key beyond `max_keys`, a store that is paused or in use by waiters.

Plans are bounded: two generations of `MOST_PLANS`, of which the older one is dropped when the younger one is full. A new
configuration drops all. There is no interpreted form; `decide` gives the same answers, and a test compares the two.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

cimport cython
from headway.core.ledger cimport Ledger
from headway.engines.memory.keyed_ledgers cimport KeyedLedgers
from headway.engines.memory.store cimport MemoryStore
from headway.limiter.permits cimport Permit, new_permit
from headway.service.envoy.refunds cimport Refunds

from headway.core.ledger import FOREVER as _FOREVER
from headway.service.envoy.codec import decode_request, encode_current_limit
from headway.service.envoy.messages import MAX_UINT32, MalformedMessage
from headway.service.envoy.units import current_limit

MOST_PLANS = 10_000
LONGEST = 1024
"""Bytes of a request that is kept."""

cdef enum:
    MOST_PARTS = 8
    ROOM = 4096
    OVERHEAD = 40  # bytes of a status besides its limit, at most

cdef long long FOREVER = _FOREVER
cdef long long SECOND = 1_000_000_000
cdef long long UINT32 = MAX_UINT32


cdef class QuickCounts:
    """What was decided here under one metric, since it was collected last."""

    cdef public long long total_hits, within_limit, near_limit, over_limit, shadow_mode


@cython.no_gc
@cython.final
cdef class Taken:
    """Hits that were taken, for `refunds`: a permit is made of it when one is given back, and mostly none is."""

    cdef MemoryStore store
    cdef Ledger ledger
    cdef object key, permit
    cdef long long mark, tally, at, cost

    cdef Permit made(self):
        cdef Permit permit
        if self.permit is None:
            permit = new_permit(False, self.store, self.key)
            permit._ledger, permit._mark, permit._tally = self.ledger, self.mark, self.tally
            permit._cost, permit._granted_at, permit._end = self.cost, self.at, 0
            self.permit = permit
        return self.permit

    @property
    def ended(self):
        return None if self.permit is None else self.permit.ended

    def _resize(self, cost):
        self.made()._resize(cost)

    def cancel(self):
        self.made().cancel()


@cython.final
cdef class Part:
    """What one descriptor comes to; without a store it is `said` as it is."""

    cdef MemoryStore store
    cdef KeyedLedgers keyed
    cdef QuickCounts counts
    cdef Refunds refunds
    cdef object key
    cdef bytes said  # the limit, or the whole status
    cdef long long hits, capacity, near
    cdef bint shadow, wall


cdef class QuickDecisions:
    """Decides for a `RateLimitService` on `memory://`."""

    cdef object service
    cdef dict young, old
    cdef long long most_keys
    cdef readonly long long requests
    """How many were decided here."""
    cdef bint shadow

    def __init__(self, service):
        self.service = service
        self.forget()

    def forget(self):
        """Drop all plans: the configuration has changed."""
        self.young, self.old = {}, {}
        self.shadow, self.most_keys = self.service.shadow, self.service.max_keys

    @property
    def plans(self):
        """How many are kept."""
        return len(self.young) + len(self.old)

    def __call__(self, bytes message not None):
        """The answer, or None: `decide` has to be asked."""
        plan = self.young.get(message)
        if plan is None:
            plan = self.find(message)
        if plan is False:
            return None
        return self.decide(<tuple> plan)

    cdef object find(self, bytes message):
        plan = self.old.get(message)
        if plan is None:
            plan = self.plan(message)
        if PyBytes_GET_SIZE(message) <= LONGEST:
            if len(self.young) >= MOST_PLANS:
                self.old, self.young = self.young, {}
            self.young[message] = plan
        return plan

    def plan(self, bytes message):
        """What a request comes to, as a tuple of parts; False if that is not for here."""
        cdef Part part
        try:
            asked = self.service.plan(decode_request(message))
        except MalformedMessage:
            return False
        if asked.unlimited or not 0 < len(asked.statuses) <= MOST_PARTS:
            return False
        parts = [None] * len(asked.statuses)
        ledgers = set()
        size = 0
        for ask in asked.asks:
            part = self.part(ask)
            if part is None:
                return False
            parts[ask.place] = part
            ledgers.add((id(part.store), part.key))
            size += len(part.said) + OVERHEAD
        if len(ledgers) < len(asked.asks) or size + MOST_PARTS * OVERHEAD > ROOM:
            return False
        for place in range(len(parts)):
            if parts[place] is None:
                part = Part.__new__(Part)
                part.said = b"\x12\x02\x08\x01"
                parts[place] = part
        return tuple(parts)

    cdef Part part(self, ask):
        cdef Part part = Part.__new__(Part)
        limiter, kept = ask.kept.limiter, ask.kept
        store = limiter._store
        plain = not kept.shared and limiter._plain and not limiter._closed and store is not None
        if not plain or ask.override is not None or ask.overdraft or not 0 < ask.hits <= ask.capacity:
            return None
        rule = store.first.rule
        if len(store.keyed_ledgers) != 1 or store.first.choose is not None or rule.spaced or store.held or store.leased:
            return None
        part.store, part.keyed, part.key, part.refunds = store, store.first, ask.key, kept.refunds
        part.counts = ask.figures.counted_quickly(QuickCounts)
        part.said = encode_current_limit(current_limit(kept.limit, ask.name))
        part.hits, part.capacity, part.shadow = ask.hits, ask.capacity, ask.shadow
        part.near = int(ask.capacity * self.service.stats.near_ratio)
        part.wall = rule.uses_wall_clock
        return part

    cdef object decide(self, tuple plan):
        cdef void *ledgers[MOST_PARTS]  # which their stores keep
        cdef long long times[MOST_PARTS]
        cdef long long waits[MOST_PARTS]
        cdef Py_ssize_t i, count = len(plan)
        cdef Part part
        cdef Ledger ledger
        cdef long long now = 0, wait
        cdef bint refused = False
        cdef unsigned char out[ROOM]
        cdef Py_ssize_t at = 2
        for i in range(count):
            part = <Part> plan[i]
            waits[i] = 0
            if part.store is None:
                continue
            if not part.store.uncontended or part.store.closed:
                return None
            now = part.store.clock.wall() if part.wall else part.store.clock.now()
            times[i] = now
            # Swept before any is found: a fresh ledger is idle, and would be forgotten before it is taken from.
            if part.keyed.countdown <= 0:
                part.keyed.sweep(now, now)
        for i in range(count):
            part = <Part> plan[i]
            if part.store is None:
                continue
            if part.key is None:
                ledger = part.keyed.default
            elif len(part.keyed.ledgers) >= self.most_keys and part.key not in part.keyed.ledgers:
                return None
            else:
                ledger = part.keyed.find(part.key)
            ledgers[i] = <void *> ledger
            wait = ledger.wait(times[i], part.hits)
            waits[i] = wait
            if wait and not part.shadow:
                refused = True
        for i in range(count):
            part = <Part> plan[i]
            if part.store is None:
                at = put(out, at, part.said)
                continue
            ledger = <Ledger> ledgers[i]
            now = times[i]
            if not refused and not waits[i]:
                self.take(part, ledger, now)
            at = self.status(part, ledger, now, waits[i], refused, out, at)
        self.requests += 1
        out[0] = 8
        out[1] = 1
        if refused and self.shadow:
            self.service.stats.shadowed += 1
        elif refused:
            out[1] = 2
        return PyBytes_FromStringAndSize(<const char *> out, at)

    cdef int take(self, Part part, Ledger ledger, long long now) except -1:
        cdef Taken taken = Taken.__new__(Taken)
        taken.store, taken.ledger, taken.key = part.store, ledger, part.key
        taken.at, taken.cost = now, part.hits
        taken.mark = ledger.take(now, part.hits)
        taken.tally = ledger.tally
        part.store.counts.granted += 1
        part.refunds.add(part.key, taken, part.hits, now)
        return 0

    cdef Py_ssize_t status(
        self, Part part, Ledger ledger, long long now, long long wait, bint refused, unsigned char *out, Py_ssize_t at
    ) except -1:
        """Count, and write how things stand."""
        cdef QuickCounts counts = part.counts
        cdef long long remaining = ledger.remaining(now), near
        cdef long long until = wait if wait else ledger.reset_after(now)
        counts.total_hits += part.hits
        if wait:
            part.store.counts.denied += 1
            counts.over_limit += part.hits
            if part.shadow:
                counts.shadow_mode += part.hits
        elif not refused:
            counts.within_limit += part.hits
            near = part.capacity - remaining - part.near
            if near > 0:
                counts.near_limit += min(part.hits, near)
        remaining = min(max(remaining, 0), UINT32)
        return write_status(out, at, 2 if wait and not part.shadow else 1, part.said, remaining, until)


def granted(bytes said not None, long long remaining, long long until):
    """The answer to a request with one descriptor that was granted, with its limit as it is said."""
    cdef unsigned char out[ROOM]
    cdef Py_ssize_t at
    if PyBytes_GET_SIZE(said) + 2 * OVERHEAD > ROOM:
        raise ValueError("the name of a limit is too long")
    out[0], out[1] = 8, 1
    at = write_status(out, 2, 1, said, remaining, until)
    return PyBytes_FromStringAndSize(<const char *> out, at)


cdef Py_ssize_t write_status(
    unsigned char *out, Py_ssize_t at, unsigned char code, bytes said, long long remaining, long long until
):
    """A status, as the second field of an answer."""
    cdef unsigned char time[24]
    cdef Py_ssize_t time_size = 0, inner
    if until < FOREVER:
        if until >= SECOND:
            time[time_size] = 8
            time_size = varint(time, time_size + 1, until // SECOND)
        if until % SECOND:
            time[time_size] = 16
            time_size = varint(time, time_size + 1, until % SECOND)
    inner = 2 + PyBytes_GET_SIZE(said)
    if remaining:
        inner += 1 + width(remaining)
    if until < FOREVER:
        inner += 2 + time_size
    out[at] = 18
    at = varint(out, at + 1, inner)
    out[at], out[at + 1] = 8, code
    at = put(out, at + 2, said)
    if remaining:
        out[at] = 24
        at = varint(out, at + 1, remaining)
    if until < FOREVER:
        out[at], out[at + 1] = 34, <unsigned char> time_size
        memcpy(out + at + 2, time, time_size)
        at += 2 + time_size
    return at


cdef inline Py_ssize_t put(unsigned char *out, Py_ssize_t at, bytes data):
    memcpy(out + at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return at + PyBytes_GET_SIZE(data)


cdef inline Py_ssize_t varint(unsigned char *out, Py_ssize_t at, unsigned long long value) noexcept:
    while value >= 128:
        out[at] = <unsigned char> (value | 128)
        value >>= 7
        at += 1
    out[at] = <unsigned char> value
    return at + 1


cdef inline Py_ssize_t width(unsigned long long value) noexcept:
    cdef Py_ssize_t found = 1
    while value >= 128:
        value >>= 7
        found += 1
    return found
