cimport cython
from headway.clock cimport Clock
from headway.core.ledger cimport Ledger, Rule
from headway.engines.memory.shelf cimport Shelf


cdef class Book:
    cdef object __weakref__
    cdef public object name
    cdef public Clock clock
    cdef public bint start_full, forked, closed, calm, solo, walled, held
    cdef public list shelves, metrics
    cdef public dict lines, pauses
    cdef public object lock, box, fork_warning, health
    cdef public long long numbers, resumed, waiting, depth
    cdef public long long granted, denied, ended, cancelled, abandoned, flight_ns

    @cython.locals(shelf=Shelf, ledger=Ledger)
    cpdef Ledger quick(self, key, long long now)
