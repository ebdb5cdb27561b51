cimport cython
from headway.engines.redis.account cimport Account, Talk
from headway.engines.redis.requests cimport Request, phrases


cdef class Lane:
    cdef public Account account
    cdef public object engine, queue
    cdef public bytes stream
    cdef public long long first, number, timeout_ns

    @cython.locals(request=Request)
    cpdef list gather(self)

    cpdef Talk talk(self, list batch, bytes ident)


cdef class ThreadLane(Lane):
    cdef public object lock, unfinished
    cdef public double timeout
    cdef public bint own_time

    @cython.locals(mine=list, batch=list)
    cpdef ask(self, Request request)

    cdef _send(self, list batch)

    @cython.locals(talk=Talk, payload=bytes, began=cython.longlong, deadline=cython.longlong, left=cython.double)
    cpdef _round(self, list batch)


cdef class TaskLane(Lane):
    cdef public object loop, slow
    cdef public list batch
    cdef public bint busy, crowded
    cdef public double deadline
    cdef public Talk under_way

    cpdef ask(self, Request request)

    @cython.locals(talk=Talk, batch=list)
    cpdef depart(self)

    @cython.locals(talk=Talk)
    cpdef arrive(self, answer)

    @cython.locals(request=Request)
    cpdef _deliver(self, list batch)

    cdef _next(self)


cpdef ThreadLane lane_of_threads(Account account)

@cython.locals(lane=TaskLane)
cpdef TaskLane lane_of_tasks(Account account, loop)
