cimport cython


@cython.final
cdef class Pauses:
    cdef readonly dict until

    cpdef long long resume_time(self, tuple keys, long long now)
