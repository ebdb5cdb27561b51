cimport cython
from headway.core.bucket cimport BucketRule
from headway.core.ledger cimport Ledger, Rule
from headway.core.wait_queue cimport WaitQueue, Ticket
from headway.engines.memory.keyed_ledgers cimport KeyedLedgers
from headway.engines.memory.vault cimport Vault


cdef long long _CATCH_UP


cdef class Queue(Vault):
    cpdef bint decide(self, Ticket ticket, bint stand)

    @cython.locals(now=cython.longlong)
    cdef bint _decide(self, Ticket ticket, bint stand)

    @cython.locals(
        wall=cython.longlong, at=cython.longlong, cost=cython.longlong, sure=cython.longlong, resume=cython.longlong,
        index=cython.Py_ssize_t, keyed=KeyedLedgers, ledger=Ledger, rule=Rule, line=WaitQueue,
    )
    cdef list _weigh(self, Ticket ticket, bint stand, long long now, list claims)

    @cython.locals(head=Ticket)
    cdef bint _behind(self, WaitQueue line, Ticket ticket)

    cdef _doubt(self, WaitQueue line, Ticket ticket, Rule rule, long long now)

    cdef _hint(self, Ticket ticket, WaitQueue line, Ledger ledger, long long at, long long now)

    @cython.locals(rule=Rule)
    cdef bint _open_ended(self, WaitQueue line, Ledger ledger, long long at)

    @cython.locals(since=cython.longlong)
    cdef long long _forecast(self, WaitQueue line, Ledger ledger, long long at, long long cost)

    cdef long long _owed_since(self, WaitQueue line, Ticket head, long long now)

    @cython.locals(ledger=Ledger, line=WaitQueue, rule=Rule, at=cython.longlong, moment=cython.longlong, cost=cython.longlong, mark=cython.longlong)
    cdef _take(self, Ticket ticket, list claims, long long now)

    cdef _stand(self, Ticket ticket, list indexes)

    @cython.locals(line=WaitQueue)
    cdef _join(self, Ticket ticket, index)

    cdef _step_out(self, Ticket ticket)

    @cython.locals(head=Ticket)
    cdef _leave_line(self, WaitQueue line, Ticket ticket)

    @cython.locals(ledger=Ledger, keyed=KeyedLedgers, now=cython.longlong)
    cdef long long _due(self, WaitQueue line, Ticket head)

    cpdef withdraw(self, Ticket ticket)
    cdef _ring(self, Ticket ticket)

    @cython.locals(line=WaitQueue)
    cpdef call_head(self, index, key)
