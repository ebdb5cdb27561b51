cimport cython
from headway.clock cimport Clock


cdef class Skewed:
    cdef readonly object base, den, end, rate, start, tick
    cdef readonly list segments

    cdef _turn(self, t)
    cpdef reading(self, t)
    cpdef when(self, reading)


cdef class LocalClock(Clock):
    cdef readonly double resolution, drift_ppm
    cdef public long long shown
