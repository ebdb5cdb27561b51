cimport cython
from headway.core.ledger cimport Ledger, Rule
from headway.core.runs cimport Runs


@cython.no_gc
@cython.final
cdef class WindowRule(Rule):
    cdef readonly long long bare_gap, gap, transit, grid, out_grid

    cpdef tuple numbers(self)


cdef class WindowLedger(Ledger):
    cdef readonly WindowRule rule
    cdef readonly long long enterable, free, lent, lost
    cdef readonly bint unordered
    cdef readonly Runs cooling, out

    @cython.locals(out=Runs, cooling=Runs, due=cython.longlong, count=cython.longlong)
    cdef void advance(self, long long now) noexcept

    @cython.locals(cooling=Runs)
    cdef long long cool(self, long long at, long long count)

    cdef long long on_grid(self, long long at) noexcept
    cdef long long on_out_grid(self, long long at) noexcept
    cdef bint some_out(self) noexcept

    @cython.locals(fresh=Runs)
    cdef Runs some_room(self)

    @cython.locals(need=cython.longlong, least=cython.longlong, wait=cython.longlong)
    cpdef long long wait(self, long long now, long long cost)

    @cython.locals(need=cython.longlong, due=cython.longlong, last=cython.longlong)
    cpdef long long latest_wait(self, long long now, long long cost)

    @cython.locals(need=cython.longlong)
    cpdef bint exact(self, long long now, long long cost)

    @cython.locals(usable=cython.longlong, until=cython.longlong)
    cpdef long long take(self, long long at, long long cost)

    @cython.locals(out=Runs)
    cpdef long long take_held(self, long long at, long long cost)

    @cython.locals(found=cython.longlong)
    cpdef complete(self, long long now, long long cost, long long mark)

    @cython.locals(last=cython.longlong)
    cpdef long long reset_after(self, long long now)

    cpdef tuple withdraw(self, long long now, long long count)
    cpdef deposit(self, long long now, long long usable, long long count)
