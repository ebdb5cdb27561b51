cimport cython


cdef long long _SLOTS, _LONG_AGO


@cython.final
cdef class SlidingCount:
    cdef readonly long long slot, total
    cdef long long _end, _here, _newest
    cdef list _counts

    @cython.locals(newest=cython.longlong)
    cpdef long long roll(self, long long now)

    cpdef note(self, long long now, long long count)
