cimport cython
from headway.core.ledger cimport Ledger
from headway.lab.clocks cimport LocalClock, Skewed


# True times are Python integers: multiplied by a clock's rate they do not fit 64 bits.
cdef class Simulation:
    cdef readonly object ask, build, draws, key, limit, limiter, naps, random, request, world
    cdef readonly object alarm, busy, ready, t
    cdef public object gap
    cdef readonly list arrivals, heap, log
    cdef readonly LocalClock clock
    cdef readonly Skewed local
    cdef readonly Ledger ledger
    cdef readonly long long cost, granted, pushed, restart_at, resting, waiting
    cdef readonly bint uncontended, clairvoyant, keen, public

    @cython.locals(clock=LocalClock, events=cython.longlong, heap=list, local=Skewed, steady=cython.bint)
    cpdef run(self)

    cdef push(self, at, happen, what)

    @cython.locals(cost=cython.longlong, ledger=Ledger, now=cython.longlong, sure=cython.longlong, wait=cython.longlong)
    cdef serve(self)

    cdef _serve_public(self, now)
    cdef _sleep(self, ready)
    cdef dispatch(self, permit)
    cdef _suffer(self, permit, misfortune, arrive, done)
    cdef _next(self)
