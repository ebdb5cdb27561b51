cimport cython
from headway.engines.redis.client.batching cimport LoopBatcher, ThreadBatcher, loop_batcher, thread_batcher
from headway.engines.redis.client.ledger_client cimport LedgerClient, LedgerTerms
from headway.engines.redis.client.requests cimport Acquire, Receipt, Request, receipt_of


cdef object AcquireCommand, Check


cdef class RedisLedgers:
    cdef public LedgerTerms registry
    cdef object __weakref__

    @cython.locals(request=Request, ledger=LedgerClient)
    cpdef send(self, command)

    cpdef receipt(self, decision)

    @cython.locals(request=Request)
    cpdef ask(self, command, loop, waiter)

    @cython.locals(registry=LedgerTerms, ledger=LedgerClient)
    cdef Request _request(self, command)
