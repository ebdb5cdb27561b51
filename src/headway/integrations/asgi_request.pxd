cimport cython
from headway.integrations.inbound cimport Inbound
from headway.integrations.refusals cimport Refusal
from headway.limiter.local cimport LocalLimiter
from headway.limiter.permits cimport Permit


cdef str _PERMIT


@cython.final
@cython.freelist(16)
cdef class Admitted:
    cdef Inbound _inbound
    cdef Permit _permit
    cdef object _send


@cython.locals(limiter=LocalLimiter)
cpdef begin(Inbound inbound, scope, send)

@cython.locals(made=Admitted)
cpdef begun(Inbound inbound, found, scope, send)

cdef tuple refused(Refusal refusal, scope)

@cython.locals(headers=list)
cpdef with_headers(message, told)
