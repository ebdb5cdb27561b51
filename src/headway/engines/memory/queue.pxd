cimport cython
from headway.core.bucket cimport BucketRule
from headway.core.ledger cimport Ledger, Rule
from headway.core.line cimport Line, Ticket
from headway.engines.memory.shelf cimport Shelf
from headway.engines.memory.vault cimport Vault


cdef long long _CATCH_UP


cdef class Queue(Vault):
    cpdef bint decide(self, Ticket ticket, bint stand)

    @cython.locals(now=cython.longlong)
    cdef bint _decide(self, Ticket ticket, bint stand)

    @cython.locals(
        wall=cython.longlong, at=cython.longlong, cost=cython.longlong, sure=cython.longlong, resume=cython.longlong,
        index=cython.Py_ssize_t, shelf=Shelf, ledger=Ledger, rule=Rule, line=Line,
    )
    cdef list _weigh(self, Ticket ticket, bint stand, long long now, list claims)

    @cython.locals(head=Ticket)
    cdef bint _behind(self, Line line, Ticket ticket)

    cdef _doubt(self, Line line, Ticket ticket, Rule rule, long long now)

    cdef _hint(self, Ticket ticket, Line line, Ledger ledger, long long at, long long now)

    @cython.locals(since=cython.longlong)
    cdef long long _forecast(self, Line line, Ledger ledger, long long at, long long cost)

    cdef long long _owed_since(self, Line line, Ticket head, long long now)

    @cython.locals(ledger=Ledger, line=Line, rule=Rule, at=cython.longlong, moment=cython.longlong, cost=cython.longlong, mark=cython.longlong)
    cdef _take(self, Ticket ticket, list claims, long long now)

    cdef _stand(self, Ticket ticket, list indexes)

    @cython.locals(line=Line)
    cdef _join(self, Ticket ticket, index)

    cdef _step_out(self, Ticket ticket)

    @cython.locals(head=Ticket)
    cdef _leave_line(self, Line line, Ticket ticket)

    @cython.locals(ledger=Ledger, shelf=Shelf, now=cython.longlong)
    cdef long long _due(self, Line line, Ticket head)

    cpdef withdraw(self, Ticket ticket)
    cdef _ring(self, Ticket ticket)

    @cython.locals(line=Line)
    cpdef call_head(self, index, key)
