cimport cython
from headway.clock cimport Clock
from headway.core.ledger cimport Ledger, Rule
from headway.engines.memory.keyed_ledgers cimport KeyedLedgers


cdef class Vault:
    cdef object __weakref__
    cdef public object name
    cdef public Clock clock
    cdef public bint start_full, forked, closed, uncontended, single_rule, uses_wall_clock, held, bracketed, off
    cdef public KeyedLedgers first
    cdef public list keyed_ledgers, metrics
    cdef public dict queues, pauses, limits
    cdef public object lock, dropped, promised, on_fork, on_block, health, spare, warned
    cdef public long long numbers, resumed, waiting, depth
    cdef public long long granted, denied, ended, cancelled, abandoned, flight_ns

    @cython.locals(keyed=KeyedLedgers)
    cpdef Ledger find_fast(self, key, long long now)

    cpdef enter(self)
    cpdef leave(self)
    cpdef long long resume_time(self, tuple keys, long long now)
    cpdef long long time_for(self, Ledger ledger)
    cpdef call_head(self, index, key)
