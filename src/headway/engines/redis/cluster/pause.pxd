from headway.engines.redis.client.batching cimport LoopBatcher, ThreadBatcher
from headway.engines.redis.client.requests cimport Request


cdef class ClusterPause:
    cdef public object registry
    cdef public tuple keys
    cdef public bint known, used
    cdef public long long idle, until, visited
    cdef double _ends, _seq
    cdef bytes _epoch
    cdef object __weakref__


cdef class PauseAwareThreadBatcher(ThreadBatcher):
    cdef ClusterPause pause_state

    cpdef send(self, Request request)


cdef class PauseAwareLoopBatcher(LoopBatcher):
    cdef ClusterPause pause_state

    cpdef flush(self)
