from headway.engines.redis.requests cimport Ask
from headway.permit cimport Permit


cdef class FleetPermit(Permit):
    cdef public Ask _ask
    cdef public object _leases, _limiter, _names


cdef class HeldFleetPermit(FleetPermit):
    pass
