cdef class LimiterCounts:
    cdef public long long granted, denied, ended, abandoned, cancelled, flight_ns
    cdef readonly set warned
