cimport cython
from headway.core.ledger cimport Ledger, Rule
from headway.core.runs cimport Runs


@cython.no_gc
@cython.final
cdef class ConcurrencyRule(Rule):
    cdef readonly long long lease


@cython.no_gc
cdef class ConcurrencyLedger(Ledger):
    cdef readonly ConcurrencyRule rule
    cdef readonly long long out, lease
    cdef readonly Runs leases

    @cython.locals(leases=Runs)
    cdef void advance(self, long long now) noexcept

    cdef long long note(self, long long at, long long cost)

    @cython.locals(found=cython.longlong)
    cpdef long long renew(self, long long now, long long cost, long long mark)

    cdef int give_back(self, long long now, long long cost, long long mark) except -1
