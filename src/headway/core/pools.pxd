cimport cython


cdef long long FOREVER, MAX_DEBT, SMALL

@cython.locals(short=cython.uint, short_by=cython.uint)
cdef unsigned long long quotient(unsigned long long number, unsigned long long by) noexcept


@cython.final
cdef class PoolRule:
    cdef readonly object rate, ratio
    cdef readonly long long whole, part, parts, extra, per, active_size, burst_size, full, at_once, most


@cython.final
cdef class Turn:
    cdef readonly long long ops, due, mark, epoch
    cdef readonly bint reserved, moved
    cdef public object waker


@cython.final
cdef class Pools:
    cdef readonly PoolRule rule
    cdef readonly dict turns
    cdef readonly bint running
    cdef readonly long long at, started, pool, waiting, charged, credit, carry, held, ops, epoch

    cdef void clear(self, long long now) noexcept

    @cython.locals(delta=cython.longlong)
    cpdef void fill(self, long long now) noexcept

    @cython.locals(room=cython.longlong)
    cdef void mint(self, PoolRule rule, long long delta) noexcept

    @cython.locals(room=cython.longlong, allowed=cython.longlong, part=cython.longlong, whole=cython.longlong)
    cdef void move(self, PoolRule rule, long long delta) noexcept

    @cython.locals(
        rule=PoolRule, delta=cython.longlong, cost=cython.longlong, left=cython.longlong, lacking=cython.longlong,
    )
    cpdef long long take(self, long long now, long long ops) noexcept

    @cython.locals(rule=PoolRule, cost=cython.longlong, left=cython.longlong, lacking=cython.longlong)
    cdef void reserve(self, Turn turn) noexcept

    @cython.locals(rule=PoolRule, part=cython.longlong)
    cdef long long refund(self, long long ops) noexcept

    @cython.locals(
        rule=PoolRule, debt=cython.longlong, both=cython.longlong, rest=cython.longlong, time=cython.longlong,
    )
    cpdef long long lag(self) noexcept

    cpdef bint join(self, Turn turn, long long now) except -1
    cpdef leave(self, Turn turn)

    @cython.locals(last=cython.bint, freed=cython.longlong)
    cpdef Turn cancel(self, Turn turn, long long now)

    cpdef settle(self)

    @cython.locals(turn=Turn, freed=cython.longlong)
    cdef unwind(self)

    @cython.locals(turn=Turn, before=cython.longlong)
    cdef rewind(self)

    cdef void clip(self) noexcept

    cpdef set_rate(self, PoolRule rule, long long now)
    cpdef run(self, long long now, bint running)
    cpdef restart(self, long long now)

    cpdef long long active(self)
    cpdef long long burst(self)
    cpdef long long consumed(self)
    cpdef long long elapsed(self)
