cimport cython
from headway.engines.redis.account cimport Account, Talk
from headway.engines.redis.requests cimport Request


cdef class Lane:
    cdef public Account account
    cdef public object engine, queue
    cdef public bytes stream
    cdef public long long first, number, timeout_ns

    cpdef Talk talk(self, list batch, bytes ident)


cdef class ThreadLane(Lane):
    cdef public object lock, unfinished

    @cython.locals(talk=Talk, payload=bytes, deadline=cython.longlong)
    cpdef _round(self, list batch)
