cimport cython
from headway.core.ledger cimport Ledger
from headway.engines.memory.book cimport Book
from headway.permit cimport Permit, new_permit


cdef bint _ATOMIC
cdef object _find_loop

cdef object current_task()


cdef class Desk:
    cdef public Book _book
    cdef public object _timeout_ns, _max_waiting, _listener
    cdef list _entered
    cdef bint _warned_loop, _plain, _unit

    cpdef refit(self)

    cdef Permit _grant(self, key, cost)
    cdef Permit _grant_quickly(self, key, cost)

    @cython.locals(book=Book, permit=Permit, ledger=Ledger, now=cython.longlong)
    cdef Permit _quick(self, key)

    cdef Permit _careful(self, key, cost)

    cdef Permit _enter(self, Permit permit)

    @cython.locals(entered=list, permit=Permit, last=cython.Py_ssize_t)
    cdef _leave(self, error)
