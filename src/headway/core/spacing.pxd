cimport cython
from headway.core.ledger cimport Ledger, Rule


@cython.no_gc
@cython.final
cdef class SpacingRule(Rule):
    cdef readonly long long interval, allowance, step, max_reserved
    cdef readonly bint strict


@cython.no_gc
cdef class SpacingLedger(Ledger):
    cdef readonly SpacingRule rule
    cdef readonly long long last, slack, before, older, used, used_by

    @cython.locals(after=cython.longlong)
    cdef long long next(self)

    cdef void widen(self) noexcept

    @cython.locals(ahead=cython.longlong, reserved=cython.longlong)
    cpdef long long slot(self, long long now, long long cost)
