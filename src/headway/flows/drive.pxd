cimport cython
from headway.core.wait_queue cimport Ticket
from headway.engines.memory.store cimport MemoryStore
from headway.flows.local cimport Decide, Park


cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        void *context
    PyThreadState *PyThreadState_Get()


cdef inline bint in_context():
    """Whether a contextvars.Context is current: every asyncio task runs in one, and plain code mostly in none."""
    return PyThreadState_Get().context != NULL


cdef object _find_loop

cpdef running_loop()

cpdef need_loop()


@cython.freelist(32)
cdef class ThreadWaker:
    cdef readonly object lock


@cython.locals(waker=ThreadWaker, park=Park)
cpdef run(flow, MemoryStore store, Ticket ticket)
