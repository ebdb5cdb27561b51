from headway.service.keys cimport KeyTable


cdef class ServedLimit:
    cdef public object config, limiter, plan, source
    cdef public KeyTable keys
    cdef public long long granted, denied, waiting
    cdef public double paused_until
