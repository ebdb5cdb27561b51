cimport cython
from headway.clock cimport Clock
from headway.core.ledger cimport Ledger, Rule
from headway.engines.memory.shelf cimport Shelf


cdef class Vault:
    cdef object __weakref__
    cdef public object name
    cdef public Clock clock
    cdef public bint start_full, forked, closed, calm, solo, walled, held, off
    cdef public Shelf first
    cdef public list shelves, metrics
    cdef public dict lines, pauses, limits
    cdef public object lock, box, promised, on_fork, on_block, health, spare, warned
    cdef public long long numbers, resumed, waiting, depth
    cdef public long long granted, denied, ended, cancelled, abandoned, flight_ns

    @cython.locals(shelf=Shelf)
    cpdef Ledger quick(self, key, long long now)

    cpdef enter(self)
    cpdef leave(self)
    cpdef long long resume_time(self, tuple keys, long long now)
    cpdef long long time_for(self, Ledger ledger)
    cpdef call_head(self, index, key)
