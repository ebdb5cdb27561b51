cimport cython
from headway.core.ledger cimport Ledger, Rule


@cython.freelist(32)
cdef class Ticket:
    cdef readonly tuple keys, costs
    cdef public long long number, since, slot
    cdef public object waker, ready, owner
    cdef public bint granted
    cdef readonly bint held
    cdef public list queues, marks


cdef class WaitQueue:
    cdef readonly Py_ssize_t index
    cdef readonly Ticket first
    cdef long long last
    cdef readonly long long held
    cdef public object tickets
    cdef public Ledger plan
    cdef public long long plan_at, served

    cpdef Ticket head(self)

    @cython.locals(number=cython.longlong)
    cpdef join(self, Ticket ticket)

    cpdef leave(self, Ticket ticket)
    cpdef mend(self)

    @cython.locals(start=cython.longlong, rule=Rule)
    cpdef long long forecast(self, Ledger ledger, long long since, long long now, long long cost)

    @cython.locals(cost=cython.longlong)
    cpdef extend_plan(self, Ticket ticket)
