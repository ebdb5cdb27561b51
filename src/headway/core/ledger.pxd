cimport cython




@cython.no_gc
cdef class Rule:
    cdef readonly object limit
    cdef readonly long long capacity, horizon, tick_ns
    cdef readonly bint bracketed, held, promises, spaced, uses_wall_clock


@cython.no_gc
cdef class Ledger:
    cdef readonly long long tally

    cpdef Rule get_rule(self)
    cpdef long long wait(self, long long now, long long cost)
    cpdef asked(self, long long now, long long cost)
    cpdef check(self, long long now)
    cpdef bint may_refuse(self)
    cpdef long long latest_wait(self, long long now, long long cost)
    cpdef long long take(self, long long at, long long cost)
    cpdef long long take_held(self, long long at, long long cost)
    cpdef long long enter(self, long long now, long long cost, long long mark, long long tally, long long at)
    cpdef long long slot(self, long long now, long long cost)
    cpdef long long slot_after(self, long long now, long long cost)
    cpdef long long use(self, long long now, long long mark)
    cpdef long long renew(self, long long now, long long cost, long long mark)
    cpdef complete(self, long long now, long long cost, long long mark)
    cpdef abandon(self, long long now, long long cost, long long mark)
    cpdef cancel(self, long long now, long long cost, long long mark, long long tally)
    cpdef settle(self, long long now, long long cost, long long mark, long long tally, long long actual)
    cpdef long long remaining(self, long long now)
    cpdef long long reset_after(self, long long now)
    cpdef long long in_flight(self, long long now)
    cpdef bint exact(self, long long now, long long cost)
    cpdef bint idle(self, long long now)
    cpdef exhaust(self, long long now)
    cpdef reconfigure(self, Rule rule, long long now)
    cpdef Ledger copy(self)
