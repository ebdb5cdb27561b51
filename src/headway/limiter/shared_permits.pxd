cimport cython
from headway.engines.redis.client.ledger_client cimport LedgerClient
from headway.engines.redis.client.requests cimport Acquire
from headway.limiter.local cimport LocalLimiter
from headway.engines.memory.store cimport MemoryStore
from headway.limiter.permits cimport Permit


cdef long _process
cdef int BRACKETED


cdef class SharedPermit(Permit):
    cdef public Acquire _call
    cdef public object _leases, _limiter
    cdef public long _taken_by


cdef class HeldSharedPermit(SharedPermit):
    pass


@cython.locals(ledger=LedgerClient, held=cython.bint, permit=SharedPermit, store=MemoryStore)
cpdef SharedPermit new_shared_permit(LocalLimiter limiter, Acquire acquire)
