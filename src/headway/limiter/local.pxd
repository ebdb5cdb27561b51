cimport cython
from headway.core.ledger cimport Ledger
from headway.core.line cimport Ticket
from headway.drive cimport in_context, run, running_loop
from headway.engines.memory.book cimport Book
from cpython.ref cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from headway.permit cimport Permit, new_permit


cdef bint _ATOMIC, _GIL
cdef Permit REFUSED

cdef bint refused(Permit permit)
cdef long long current_task()


cdef inline long long this_thread():
    return <long long>PyThread_get_thread_ident()


cdef inline bint only_ours(Desk desk, Book book, bint held):
    """Whether the spare permit is referred to by nothing but the place where it is kept."""
    if not _GIL:
        return False
    if held:
        return book.spare is not None and (<PyObject*>book.spare).ob_refcnt == 1
    return desk._spare is not None and (<PyObject*>desk._spare).ob_refcnt == 1


cdef class Desk:
    cdef public Book _book
    cdef public object _timeout_ns, _max_waiting, _listener
    cdef list _outer
    cdef Permit _entered, _spare
    cdef bint _plain

    @cython.locals(book=Book)
    cdef Permit _grant_quickly(self, key, cost)

    @cython.locals(permit=Permit, held=cython.bint, ours=cython.bint, ledger=Ledger, now=cython.longlong)
    cdef Permit _quick(self, Book book, key)

    @cython.locals(ticket=Ticket)
    cdef Permit _careful(self, key, cost)

    @cython.locals(book=Book, ledger=Ledger, permit=Permit)
    cpdef Permit permit_for(self, Ticket ticket)

    cpdef tuple request(self, key, cost)

    @cython.locals(book=Book, ticket=Ticket)
    cdef tuple _queue(self, key, cost, timeout)

    cdef Permit _waited(self, Ticket ticket)

    cdef Permit _enter(self, Permit permit)

    cdef _push(self, Permit permit)

    @cython.locals(permit=Permit)
    cdef _leave(self, error)

    @cython.locals(permit=Permit, owner=cython.longlong, task=cython.longlong, place=cython.Py_ssize_t)
    cdef Permit _own(self)
