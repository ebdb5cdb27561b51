cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from headway.engines.redis.client.ledger_client cimport CommandFrame, LedgerClient, LedgerTerms, Reply
from headway.engines.redis.client.requests cimport Request, encode_batch
from libc.string cimport memcpy


cdef Py_ssize_t HEAD_SIZE
cdef tuple SIZES
cdef long long PROMPT


# Numbers as the scripts read them; the interpreted form uses the struct module. Little-endian machines only, which
# `protocol` checks.
cdef inline bytes pack_header(
    double at, double low, double high, double number, double seq, double lease, double generation, double width,
    double sharded,
):
    cdef double values[9]
    values[0] = at
    values[1] = low
    values[2] = high
    values[3] = number
    values[4] = seq
    values[5] = lease
    values[6] = generation
    values[7] = width
    values[8] = sharded
    return PyBytes_FromStringAndSize(<char *>values, 72)


cdef inline double number_at(bytes data, Py_ssize_t index):
    cdef double value
    memcpy(&value, PyBytes_AS_STRING(data) + 8 * index, 8)
    return value


cdef inline bytes epoch_of(bytes data):
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + 64, 24)


cdef inline tuple numbers_from(bytes data, Py_ssize_t offset):
    cdef Py_ssize_t first = offset // 8
    return tuple([number_at(data, i) for i in range(first, PyBytes_GET_SIZE(data) // 8)])


cdef class ClockSample:
    cdef public double ticks
    cdef public long long received, sent

    cpdef (double, double) bounds(self, long long sent, long long later, double drift)


cdef class RoundTrip(Reply):
    cdef public LedgerClient ledger
    cdef public list batch, commands
    cdef public bytes epoch, ident, stream
    cdef public long long first, number
    cdef public bint slow

    @cython.locals(ledger=LedgerClient, frame=CommandFrame, registry=LedgerTerms, known=cython.bint, commands=list, middle=bytes, sample=ClockSample, low=cython.double, high=cython.double, seq=cython.double, longest=cython.longlong)
    cpdef bytes encode(self, bytes prelude=*)

    @cython.locals(ledger=LedgerClient, registry=LedgerTerms, request=Request, answers=tuple, position=cython.Py_ssize_t)
    cpdef bint settle(self, reply) except -1
