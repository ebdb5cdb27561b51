cimport cython
from headway.core.ledger cimport Ledger, Rule
from headway.core.runs cimport Runs


@cython.no_gc
@cython.final
cdef class WindowRule(Rule):
    cdef readonly long long gap, transit, grid, out_grid


cdef class WindowLedger(Ledger):
    cdef readonly WindowRule rule
    cdef readonly long long free, lost
    cdef readonly Runs cooling, out

    @cython.locals(out=Runs, cooling=Runs, due=cython.longlong, count=cython.longlong)
    cdef void advance(self, long long now) noexcept

    @cython.locals(at=cython.longlong)
    cdef long long cool(self, long long completed, long long count)

    @cython.locals(at=cython.longlong)
    cdef long long usable(self, long long completed)

    @cython.locals(need=cython.longlong, least=cython.longlong)
    cpdef long long wait(self, long long now, long long cost)

    @cython.locals(need=cython.longlong)
    cpdef long long latest_wait(self, long long now, long long cost)

    @cython.locals(found=cython.longlong)
    cpdef complete(self, long long now, long long cost, long long mark)

    @cython.locals(last=cython.longlong)
    cpdef long long reset_after(self, long long now)
