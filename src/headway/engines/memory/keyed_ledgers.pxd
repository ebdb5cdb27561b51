cimport cython
from headway.core.ledger cimport Ledger, Rule


cdef class KeyedLedgers:
    cdef readonly Rule rule
    cdef public object choose, full_at
    cdef readonly dict ledgers
    cdef list keys
    cdef Py_ssize_t cursor, peak
    cdef long long pace
    cdef readonly long long countdown
    cdef readonly Ledger default

    cdef Ledger fresh(self, Rule rule, key)
    cpdef Rule rule_for(self, key)

    @cython.locals(ledger=Ledger)
    cpdef Ledger find(self, key)

    cpdef Ledger peek(self, key)

    @cython.locals(ledger=Ledger)
    cdef Ledger open(self, key)

    @cython.locals(ledger=Ledger, keys=list, found=cython.longlong, i=cython.Py_ssize_t)
    cpdef sweep(self, long long now, long long wall)
