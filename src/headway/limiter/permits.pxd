cimport cython
from headway.core.ledger cimport Ledger
from headway.engines.memory.store cimport MemoryStore
from headway.limit_headers cimport pairs_until, texts_of, until_of_ns


cdef int _COMPLETE, _CANCEL, _ABANDON, _SETTLE, _HELD
cdef bint _ATOMIC


cdef class Permit:
    # Public are those that a permit of a shared ledger, which is plain Python, fills itself.
    cdef public int _held
    cdef public MemoryStore _store
    cdef list _claims
    cdef long long _cost, _mark, _tally
    cdef readonly long long _granted_at
    cdef public long long _slot, _owner, _task
    cdef public int _end
    cdef public object _key, _listener
    cdef object _clock
    cdef Ledger _ledger

    @cython.locals(store=MemoryStore, ledger=Ledger, now=cython.longlong)
    cdef void _hand_back(self, int how) except *

    @cython.locals(store=MemoryStore, ledger=Ledger, now=cython.longlong)
    cdef _start_here(self)

    cdef void _entered_at(self, long long now) noexcept

    @cython.locals(store=MemoryStore, claims=list)
    cdef _end_locked(self, int how, dict actual)

    @cython.locals(store=MemoryStore, now=cython.longlong)
    cpdef list _rows(self)

    @cython.locals(store=MemoryStore, ledger=Ledger, now=cython.longlong)
    cpdef list _pairs(self, bint legacy)

    cpdef _finish(self, error, answered=*, not_sent=*)


cdef class HeldPermit(Permit):
    pass


@cython.locals(permit=Permit)
cdef Permit new_permit(bint held, MemoryStore store, object key)

cdef tuple _row(Ledger ledger, long long now, long long cost)
