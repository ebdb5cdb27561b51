cimport cython
from headway.denied cimport Denied
from headway.integrations.client_address cimport ClientAddress
from headway.integrations.refusals cimport Refusal, Refusals
from headway.limiter.local cimport LocalLimiter


cdef object _ONE


cdef class Inbound:
    cdef public bint headers, legacy_headers
    cdef public object deduct_when
    cdef object _limiters, _choose, _only, _tier, _key, _cost, _exempt
    cdef public object _bans
    cdef dict _tiers
    cdef ClientAddress _address
    cdef Refusals _refusals

    cpdef limiter_for(self, request)
    cpdef take(self, LocalLimiter limiter, request, bint bans=*)
