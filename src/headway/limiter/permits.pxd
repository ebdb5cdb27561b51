cimport cython
from headway.core.ledger cimport Ledger
from headway.engines.memory.store cimport MemoryStore


cdef int _COMPLETE
cdef bint _ATOMIC


cdef class Permit:
    # Public are those that a permit of a shared ledger, which is plain Python, fills itself.
    cdef public bint _held
    cdef public MemoryStore _store
    cdef list _claims
    cdef long long _cost, _granted_at, _mark, _tally
    cdef public long long _slot, _owner, _task
    cdef public int _end
    cdef public object _key, _listener
    cdef object _clock
    cdef Ledger _ledger

    @cython.locals(store=MemoryStore, ledger=Ledger, now=cython.longlong)
    cdef void _hand_back(self, int how) except *

    cpdef _finish(self, error, answered=*, not_sent=*)


cdef class HeldPermit(Permit):
    pass


@cython.locals(permit=Permit)
cdef Permit new_permit(bint held, MemoryStore store, object key)
