cimport cython
from headway.core.ledger cimport Ledger, Rule


@cython.no_gc
@cython.final
cdef class ConcurrencyRule(Rule):
    cdef readonly long long lease


@cython.no_gc
cdef class ConcurrencyLedger(Ledger):
    cdef readonly ConcurrencyRule rule
    cdef readonly long long out
