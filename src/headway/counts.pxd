cdef int _COMPLETE, _CANCEL, _ABANDON


cdef class LimiterCounts:
    cdef public long long granted, denied, ended, abandoned, cancelled, flight_ns
    cdef readonly set warned

    cpdef count_end(self, int how, long long flight_ns)
