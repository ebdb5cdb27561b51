cimport cython
from headway.clock cimport Clock
from headway.counts cimport LimiterCounts
from headway.flows.drive cimport need_loop
from headway.limiter.shared_permits cimport SharedPermit, new_shared_permit


cdef int GRANTED


cdef class SharedLimiter:
    cdef public object _bare, _bracket, _emitter, _engine, _exempt, _fallback, _max_waiting, _now, _read, _timeout_ns
    cdef public object ledgers, name, table
    cdef public Clock _clock
    cdef public long long _abandoned_at
    cdef public LimiterCounts counts
    cdef object __weakref__

    cpdef try_acquire(self, key, cost)

    cpdef acquire(self, key, cost, timeout, bint brackets=*)

    cdef _try_command(self, key, cost)

    cdef _verdict(self, decision, key, cost)

    cpdef _spent(self, decision, key, cost)

    @cython.locals(permit=SharedPermit)
    cpdef SharedPermit _granted(self, decision, key, cost, long long since=*)
