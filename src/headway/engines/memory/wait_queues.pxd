cimport cython
from headway.clock cimport Clock
from headway.core.ledger cimport Ledger, Rule
from headway.core.wait_queue cimport Ticket, WaitQueue
from headway.engines.memory.keyed_ledgers cimport KeyedLedgers


cdef long long _CATCH_UP


@cython.final
cdef class WaitQueues:
    cdef Clock clock
    cdef list keyed_ledgers
    cdef readonly dict by_place
    cdef readonly set waiters
    cdef public long long resumed

    cpdef join(self, Ticket ticket, list indexes)

    @cython.locals(queue=WaitQueue)
    cdef _join(self, Ticket ticket, index)

    cpdef leave(self, Ticket ticket)

    @cython.locals(head=Ticket)
    cdef _leave(self, WaitQueue queue, Ticket ticket)

    @cython.locals(queue=WaitQueue)
    cpdef remove(self, Ticket ticket)

    @cython.locals(ledger=Ledger, keyed=KeyedLedgers, now=cython.longlong, at=cython.longlong)
    cdef long long _due(self, WaitQueue queue, Ticket head)

    @cython.locals(head=Ticket)
    cdef bint behind(self, WaitQueue queue, Ticket ticket)

    cdef doubt(self, WaitQueue queue, Ticket ticket, Rule rule, long long now)

    cdef hint(self, Ticket ticket, WaitQueue queue, Ledger ledger, long long at, long long now)

    @cython.locals(rule=Rule)
    cdef bint open_ended(self, WaitQueue queue, Ledger ledger, long long at)

    @cython.locals(since=cython.longlong)
    cdef long long forecast(self, WaitQueue queue, Ledger ledger, long long at, long long cost)

    cdef long long owed_since(self, WaitQueue queue, Ticket head, long long now)

    cpdef wake(self, Ticket ticket)

    @cython.locals(queue=WaitQueue)
    cpdef wake_head(self, index, key)

    cpdef wake_heads(self)
