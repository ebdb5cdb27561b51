cimport cython
from headway.engines.redis.client.ledger_client cimport LedgerClient
from headway.engines.redis.client.requests cimport Request, grant_status
from headway.engines.redis.client.round_trip cimport RoundTrip
from headway.engines.redis.net.connections cimport LoopConnection
from headway.interrupts cimport take_lock


cdef class Batcher:
    cdef public LedgerClient ledger
    cdef public object engine, queue
    cdef public bytes stream
    cdef public long long first, number, timeout_ns

    @cython.locals(request=Request)
    cpdef list gather(self)


cdef class ThreadBatcher(Batcher):
    cdef public object lock, unfinished
    cdef public double timeout

    @cython.locals(mine=list, batch=list)
    cpdef send(self, Request request)

    @cython.locals(ledger=LedgerClient, together=list, request=Request)
    cdef _send(self, list batch)

    @cython.locals(round_trip=RoundTrip, payload=bytes, began=cython.longlong, deadline=cython.longlong, left=cython.double)
    cpdef _round(self, list batch)


cdef class LoopBatcher(Batcher):
    cdef public object loop, slow
    cdef public list batch
    cdef public bint busy, crowded
    cdef public double deadline
    cdef public RoundTrip under_way
    cdef public LoopConnection wire

    cpdef send(self, Request request)

    cpdef enqueue(self, Request request, waiter)

    @cython.locals(round_trip=RoundTrip, batch=list, asks=list, connection=LoopConnection)
    cpdef flush(self)

    @cython.locals(wire=LoopConnection)
    cdef LoopConnection _wire(self)

    @cython.locals(round_trip=RoundTrip)
    cpdef on_reply(self, answer)

    @cython.locals(request=Request)
    cpdef _deliver(self, list batch)

    cdef _next(self)


cpdef ThreadBatcher thread_batcher(LedgerClient ledger)

@cython.locals(batcher=LoopBatcher)
cpdef LoopBatcher loop_batcher(LedgerClient ledger, loop)
