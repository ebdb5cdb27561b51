cdef double _FIRST


cdef class LimitFigures:
    cdef public long long granted, shadow_denied
    cdef public dict denied
    cdef public double seconds
    cdef public list within

    cpdef observe(self, double seconds)
    cpdef grant(self, double seconds)
    cpdef deny(self, reason, double seconds, bint shadow)
