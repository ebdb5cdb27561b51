from posix.time cimport timespec
cimport cython


cdef class Clock:
    cpdef long long now(self)
    cpdef long long wall(self)


cdef class SystemClock(Clock):
    pass


cdef Clock substitute


@cython.locals(moment=timespec)
cdef long long monotonic() noexcept
