cimport cython
from headway.engines.redis.account cimport Account
from headway.engines.redis.requests cimport Ask
from headway.desk cimport Desk
from headway.engines.memory.book cimport Book
from headway.permit cimport Permit


cdef long _process


cdef class FleetPermit(Permit):
    cdef public Ask _ask
    cdef public object _leases, _limiter
    cdef public long _taken_by


cdef class HeldFleetPermit(FleetPermit):
    pass


@cython.locals(account=Account, held=cython.bint, permit=FleetPermit, book=Book)
cpdef FleetPermit new_fleet_permit(Desk limiter, Ask ask)
