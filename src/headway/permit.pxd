cimport cython
from headway.core.ledger cimport Ledger
from headway.engines.memory.book cimport Book


cdef int _COMPLETE
cdef bint _ATOMIC


cdef class Permit:
    cdef bint _held
    cdef Book _book
    cdef list _claims
    cdef long long _cost, _granted_at, _mark, _slot, _tally, _owner, _task
    cdef int _end
    cdef object _key, _listener
    cdef Ledger _ledger

    @cython.locals(book=Book, ledger=Ledger, now=cython.longlong)
    cdef hand_back(self, int how)

    cpdef finish(self, error, answered=*, not_sent=*)


cdef class HeldPermit(Permit):
    pass


@cython.locals(permit=Permit)
cdef Permit new_permit(bint held, Book book, object key)
