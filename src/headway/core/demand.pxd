cimport cython
from headway.core.sliding_count cimport SlidingCount


cdef long long _LONG_AGO


@cython.final
cdef class Demand:
    cdef public long long first, last, span
    cdef public SlidingCount recent, steady

    cpdef note(self, long long now, long long cost)
    cpdef expected(self, long long now)
