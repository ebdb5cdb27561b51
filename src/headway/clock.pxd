from posix.time cimport timespec
cimport cython


cdef class Clock:
    cpdef long long now(self)
    cpdef long long wall(self)
    cpdef park(self, waker, until_ns)


cdef class SystemClock(Clock):
    @cython.locals(until=cython.longlong, left=cython.double)
    cpdef park(self, waker, until_ns)


cdef Clock substitute


@cython.locals(moment=timespec)
cdef long long monotonic() noexcept
