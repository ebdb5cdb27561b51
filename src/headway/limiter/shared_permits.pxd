cimport cython
from headway.limiter.permits cimport Permit


cdef class SharedPermit(Permit):
    cdef public object _asked, _decision, _limiter

    cpdef list _rows(self)
    cpdef list _pairs(self, bint legacy)


cdef class HeldSharedPermit(SharedPermit):
    pass


@cython.locals(held=cython.bint, permit=SharedPermit)
cpdef SharedPermit new_shared_permit(limiter, decision, key, asked)
