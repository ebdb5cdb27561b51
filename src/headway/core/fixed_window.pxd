cimport cython
from headway.core.ledger cimport Ledger, Rule


@cython.no_gc
@cython.final
cdef class FixedWindowRule(Rule):
    cdef readonly object window_of


@cython.no_gc
cdef class FixedWindowLedger(Ledger):
    cdef readonly FixedWindowRule rule
    cdef readonly long long ends, used

    cdef int roll(self, long long now)
