cimport cython
from headway.core.ledger cimport Ledger
from headway.engines.memory.book cimport Book
from cpython.ref cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from headway.permit cimport Permit, new_permit


cdef bint _ATOMIC, _GIL
cdef object _find_loop
cdef Permit REFUSED

cdef bint refused(Permit permit)
cdef long long current_task()


cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        void *context
    PyThreadState *PyThreadState_Get()


cdef inline bint in_context():
    """Whether a contextvars.Context is current: every asyncio task runs in one, and plain code mostly in none."""
    return PyThreadState_Get().context != NULL


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

    cdef Permit _careful(self, key, cost)

    cdef Permit _enter(self, Permit permit)

    cdef _push(self, Permit permit)

    @cython.locals(permit=Permit)
    cdef _leave(self, error)

    @cython.locals(permit=Permit, owner=cython.longlong, task=cython.longlong, place=cython.Py_ssize_t)
    cdef Permit _own(self)
