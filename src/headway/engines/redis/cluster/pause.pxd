from headway.engines.redis.lanes cimport TaskLane, ThreadLane
from headway.engines.redis.requests cimport Request


cdef class Halt:
    cdef public object spec
    cdef public tuple keys
    cdef public bint known, used
    cdef public long long idle, until, visited
    cdef double _ends, _seq
    cdef bytes _epoch
    cdef object __weakref__


cdef class HeedingThreadLane(ThreadLane):
    cdef Halt halt

    cpdef ask(self, Request request)


cdef class HeedingTaskLane(TaskLane):
    cdef Halt halt

    cpdef depart(self)
