cimport cython
from headway.clock cimport Clock
from headway.core.ledger cimport Ledger, Rule
from headway.core.wait_queue cimport Ticket, WaitQueue
from headway.counts cimport LimiterCounts
from headway.engines.memory.keyed_ledgers cimport KeyedLedgers
from headway.engines.memory.pauses cimport Pauses
from headway.engines.memory.wait_queues cimport WaitQueues


cdef bint _INTERPRETED
cdef int _COMPLETE, _CANCEL, _ABANDON


cdef void note(list journal, Ledger ledger) noexcept


cdef class MemoryStore:
    cdef object __weakref__
    cdef public object name, lock, spare, taking
    cdef public Clock clock
    cdef public bint start_full, forked, closed, uncontended, single_rule, uses_wall_clock, held, bracketed, leased, off
    cdef public KeyedLedgers first
    cdef readonly list keyed_ledgers
    cdef public list metrics, dropped, freed
    cdef public dict limits
    cdef readonly WaitQueues queues
    cdef public Pauses pauses
    cdef readonly LimiterCounts counts
    cdef public long long numbers, depth, users

    @cython.locals(keyed=KeyedLedgers)
    cpdef Ledger find_fast(self, key, long long now)

    cpdef long long time_for(self, Ledger ledger)

    cpdef settle(self)

    @cython.locals(claim=tuple)
    cdef _settle(self)

    @cython.locals(ledger=Ledger, cost=cython.longlong, mark=cython.longlong)
    cdef _abandon(self, tuple claim)

    cpdef drop(self, tuple claim)
    cpdef tidy(self)

    @cython.locals(depth=cython.longlong)
    cpdef bint decide(self, Ticket ticket, bint stand)

    @cython.locals(depth=cython.longlong, now=cython.longlong, paused=cython.bint)
    cpdef tuple attempt(self, Ticket ticket)

    cdef bint _decide(self, Ticket ticket, bint stand, long long now, list journal)

    @cython.locals(keyed=KeyedLedgers, cost=cython.longlong)
    cdef _ask(self, Ticket ticket, long long now)

    cdef _check(self, Ticket ticket)

    @cython.locals(
        wall=cython.longlong, at=cython.longlong, cost=cython.longlong, sure=cython.longlong, resume=cython.longlong,
        index=cython.Py_ssize_t, keyed=KeyedLedgers, ledger=Ledger, rule=Rule, queue=WaitQueue, queues=WaitQueues,
    )
    cdef list _weigh(self, Ticket ticket, bint stand, long long now, list claims, list journal)

    @cython.locals(ledger=Ledger)
    cdef Ledger _find(self, KeyedLedgers keyed, key, long long now, long long wall, list journal)

    @cython.locals(
        ledger=Ledger, queue=WaitQueue, at=cython.longlong, moment=cython.longlong, cost=cython.longlong,
        mark=cython.longlong, since=cython.longlong, waited=cython.bint,
    )
    cdef _take(self, Ticket ticket, list claims, long long now)

    @cython.locals(depth=cython.longlong, ledger=Ledger)
    cpdef withdraw(self, Ticket ticket)

    @cython.locals(depth=cython.longlong, counts=LimiterCounts, flight_ns=cython.longlong)
    cpdef bint end(self, permit, int how, list claims, dict actual=*)

    cdef _end_claim(
        self, int how, index, Ledger ledger, long long cost, long long mark, long long tally, key, long long actual,
        list journal,
    )

    @cython.locals(
        keyed=KeyedLedgers, ledger=Ledger, rule=Rule, queue=WaitQueue, at=cython.longlong, wall=cython.longlong,
        resume=cython.longlong, wait=cython.longlong, cost=cython.longlong, exact=cython.bint,
    )
    cdef list _rows(self, tuple keys, tuple costs, long long now)
