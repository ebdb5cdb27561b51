cimport cython
from headway.core.ledger cimport Ledger, Rule


@cython.no_gc
@cython.final
cdef class BucketRule(Rule):
    cdef readonly long long whole, part, parts, room, room_part


@cython.no_gc
cdef class BucketLedger(Ledger):
    cdef readonly BucketRule rule
    cdef readonly long long tat, part, latest

    @cython.locals(rule=BucketRule, ahead=cython.longlong, part=cython.longlong, over=cython.longlong)
    cpdef long long wait(self, long long now, long long cost)

    @cython.locals(rule=BucketRule, tat=cython.longlong, part=cython.longlong)
    cpdef long long take(self, long long at, long long cost)

    @cython.locals(
        rule=BucketRule, since=cython.longlong, busy=cython.longlong, left=cython.longlong, most=cython.longlong,
        whole=cython.longlong, part=cython.longlong, last=cython.bint,
    )
    cdef void refund(self, long long now, long long cost, long long mark, long long tally, bint happened)

    @cython.locals(old=BucketRule)
    cpdef resize(self, Rule rule, long long now, long long full_in)
