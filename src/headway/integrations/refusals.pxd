cimport cython
from headway.denied cimport Denied
from headway.limit_headers cimport until_of_ns


@cython.final
cdef class Refusal:
    cdef readonly int status
    cdef readonly dict headers, problem
    cdef readonly list lines
    cdef readonly bytes body
    cdef public object limit
    cdef public long long until


cdef class Refusals:
    cdef bint _headers, _legacy
    cdef dict _kept
    cdef Refusal _last

    @cython.locals(t=cython.longlong, last=Refusal, rows=list)
    cpdef Refusal of(self, Denied denied)

    @cython.locals(t=cython.longlong, found=Refusal)
    cdef Refusal _of_row(self, limit, left, wait, rest, reason)
