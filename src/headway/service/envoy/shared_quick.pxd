cimport cython
from headway.clock cimport Clock
from headway.service.envoy.refunds cimport Refunds


cdef int GRANTED


cdef class SharedPart:
    cdef public object ask, command, current, figures, kept, key, ledgers, limit, shared
    cdef public Refunds refunds
    cdef public bytes said
    cdef public long long capacity, hits, near, noted_until


@cython.no_gc
@cython.final
cdef class Taken:
    cdef public SharedPart part
    cdef public object receipt, permit


@cython.locals(hits=Taken)
cdef object taken(SharedPart part, found)


cdef class PendingAnswer:
    cdef public object call, decision, error, otherwise, rest
    cdef public SharedDecisions decisions
    cdef public SharedPart part
    cdef public bint gone, over

    cpdef set_result(self, result)

    cpdef finish(self)


cdef class SharedDecisions:
    cdef public object service, _answer
    cdef public Clock clock
    cdef public dict _young, _old
    cdef object __weakref__

    cpdef SharedPart find(self, bytes message)

    @cython.locals(part=SharedPart, pending=PendingAnswer)
    cpdef begin(self, bytes message, call, otherwise)

    @cython.locals(rows=list, now=cython.longlong, hits=cython.longlong, near=cython.longlong, remaining=cython.longlong)
    cpdef bytes usual_answer(self, SharedPart part, decision)

    cpdef _note(self, SharedPart part, long long now)
