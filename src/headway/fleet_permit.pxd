from headway.engines.redis.requests cimport Ask
from headway.permit cimport Permit


cdef long _process


cdef class FleetPermit(Permit):
    cdef public Ask _ask
    cdef public object _leases, _limiter, _names
    cdef public long _taken_by


cdef class HeldFleetPermit(FleetPermit):
    pass
