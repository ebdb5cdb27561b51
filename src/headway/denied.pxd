cimport cython
from headway.core.ledger cimport Ledger


@cython.final
@cython.freelist(16)
cdef class Denied:
    cdef readonly object key, reason
    cdef object _limit, _metrics, _snapshot, _status
    cdef double _in_doubt
    cdef long long _wait, _reset, _out
    cdef bint _exact

    cpdef list _rows(self)


@cython.locals(denied=Denied)
cdef Denied new_denied(key, metrics, Ledger ledger, long long now, long long wait)
