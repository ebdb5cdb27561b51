cimport cython
from headway.core.demand cimport Demand
from headway.core.ledger cimport Ledger, Rule


cdef long long _FOREVER, _LONG_AGO


@cython.final
cdef class BorrowedRule(Rule):
    cdef readonly object borrower, terms
    cdef readonly long long look_every, soon


cdef class BorrowedLedger(Ledger):
    cdef readonly BorrowedRule rule
    cdef readonly object key
    cdef public object away, holder
    cdef readonly bint dead, relet
    cdef readonly Demand demand
    cdef readonly Ledger own
    cdef readonly long long held, look_at, stop

    cdef _look(self, long long now)

    @cython.locals(wait=cython.longlong)
    cpdef long long wait(self, long long now, long long cost)

    @cython.locals(mark=cython.longlong)
    cpdef long long take(self, long long at, long long cost)

    @cython.locals(mark=cython.longlong)
    cpdef long long take_held(self, long long at, long long cost)
