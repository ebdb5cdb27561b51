cimport cython
from headway.core.ledger cimport Ledger, Rule


cdef class Shelf:
    cdef readonly Rule rule
    cdef public object choose, full_at
    cdef readonly dict ledgers
    cdef list ring
    cdef Py_ssize_t hand, peak
    cdef long long pace
    cdef readonly long long countdown
    cdef readonly Ledger lone

    cdef Ledger fresh(self, Rule rule)
    cpdef Rule rule_for(self, key)

    @cython.locals(ledger=Ledger)
    cpdef Ledger find(self, key)

    cpdef Ledger look(self, key)

    @cython.locals(ledger=Ledger)
    cdef Ledger open(self, key)

    @cython.locals(ledger=Ledger, ring=list, found=cython.longlong, i=cython.Py_ssize_t)
    cpdef sweep(self, long long now, long long wall)
