cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from headway.engines.redis.client.ledger_client cimport LedgerClient, LedgerTerms, Reply


# The two commands of every call, packed without the struct module. ACQUIRE is 1 and RELEASE is 2, as in script/lua/header.lua.
cdef inline bytes pack_try(double ticket, double patience, double longest, double times, tuple costs):
    cdef Py_ssize_t i
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, 8 * (5 + len(costs)))
    cdef double *values = <double *>PyBytes_AS_STRING(packed)
    values[0] = 1
    values[1] = ticket
    values[2] = patience
    values[3] = longest
    values[4] = times
    for i in range(len(costs)):
        values[5 + i] = costs[i]
    return packed


cdef inline bytes pack_end(double how, double ticket, tuple costs, tuple marks, tuple actual):
    cdef Py_ssize_t i
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, 8 * (3 + 4 * len(costs)))
    cdef double *values = <double *>PyBytes_AS_STRING(packed)
    values[0] = 2
    values[1] = how
    values[2] = ticket
    for i in range(len(costs)):
        values[3 + 4 * i] = costs[i]
        values[4 + 4 * i] = marks[2 * i]
        values[5 + 4 * i] = marks[2 * i + 1]
        values[6 + 4 * i] = costs[i] if actual is None else actual[i]
    return packed


cdef int GRANTED, SEVERAL
cdef long long _process


cdef class Request:
    cdef public LedgerClient ledger
    cdef public object waker, error, waiter
    cdef public bytes command, epoch
    cdef public bint done, unknown, orphan, posted, void
    cdef object __weakref__

    cpdef bytes encode(self, tickets, Py_ssize_t times=*)

    cpdef Py_ssize_t apply_reply(self, Reply reply, tuple said, Py_ssize_t position) except -1

    cpdef resolve_waiter(self)


cdef class Acquire(Request):
    cdef public tuple costs, marks
    cdef public object ending, entered, raw_rows, renewals
    cdef public long long expires, process, replied_at, resume_at, slot, ticket
    cdef public double due, halted, longest, pause, quarantine, shift
    cdef public int patience, verdict
    cdef public bint asleep, checked, held, owned, returned, stood

    @cython.locals(now=cython.longlong)
    cpdef bint spendable(self) except -1

    @cython.locals(width=cython.Py_ssize_t, end=cython.Py_ssize_t, verdict=cython.int, delay=cython.double, marks=tuple)
    cpdef Py_ssize_t apply_reply(self, Reply reply, tuple said, Py_ssize_t position) except -1

    @cython.locals(ledger=LedgerClient, registry=LedgerTerms)
    cpdef grant(self, double delay, tuple marks, double shift, bytes epoch, long long sent, long long received)


@cython.no_gc
@cython.final
cdef class Receipt:
    cdef public LedgerClient ledger
    cdef public tuple costs
    cdef public bytes epoch
    cdef public double mark, tally
    cdef public long long process


@cython.locals(receipt=Receipt, ledger=LedgerClient)
cpdef Receipt receipt_of(Acquire acquire)

@cython.locals(first=Acquire, acquire=Acquire, times=cython.Py_ssize_t, request=Request, said=list)
cpdef list encode_batch(list batch, tickets)


cdef class Peek(Request):
    cdef public object raw_rows
    cdef public Py_ssize_t width
    cdef public double quarantine

    cpdef Py_ssize_t apply_reply(self, Reply reply, tuple said, Py_ssize_t position) except -1


cdef class GrantStatus(Peek):
    cdef public list acquires

    @cython.locals(acquire=Acquire, end=cython.Py_ssize_t)
    cpdef Py_ssize_t apply_reply(self, Reply reply, tuple said, Py_ssize_t position) except -1


cdef dict LOOKS

@cython.locals(acquire=Acquire, by_costs=dict)
cpdef list grant_status(list batch)

@cython.locals(end=cython.Py_ssize_t, at=cython.Py_ssize_t)
cpdef tuple rows_of(Reply reply, tuple said, Py_ssize_t position, Py_ssize_t width)

@cython.locals(rows=list, remaining=cython.double, wait=cython.double, reset=cython.double, waiting=cython.double, out=cython.double, exact=cython.double, governs=cython.double)
cpdef list rows_said(LedgerClient ledger, raw_rows)
