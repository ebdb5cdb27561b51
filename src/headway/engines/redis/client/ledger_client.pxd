cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from headway.clock cimport Clock
from libc.string cimport memcpy


cdef Py_ssize_t HEAD_SIZE
cdef tuple SIZES
cdef long long PROMPT


# Numbers as the scripts read them; the interpreted form uses the struct module. Little-endian machines only, which
# `words` checks.
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


cdef inline tuple numbers_from(bytes data, Py_ssize_t offset):
    cdef Py_ssize_t first = offset // 8
    return tuple([number_at(data, i) for i in range(first, PyBytes_GET_SIZE(data) // 8)])


cdef class ClockSample:
    cdef public double ticks
    cdef public long long received, sent

    cpdef double least(self, long long now, double drift)

    cpdef double most(self, long long later, double drift)


cdef class LedgerTerms:
    cdef public object clock_samples, engine
    cdef public Clock clock
    cdef public bytes text
    cdef public double drift, generation, lease, sharded
    cdef public long long timeout_ns


cdef class LedgerClient:
    cdef public LedgerTerms registry
    cdef public object release_stream, pause_state, key, batchers, last_loop_batcher, standing, sleepers, leases, rota, rules, script, spare, ends
    cdef public tuple keys, front, lookup_keys
    cdef public bytes epoch, ident, opening, over, reopening, packed, text
    cdef public dict framed
    cdef public list leased
    cdef public double halted, seq, shift, waiting
    cdef public long long allowance_ns, expires, replied_at, poll_at, seen, visited
    cdef public Py_ssize_t parts, width
    cdef public bint can_queue, held, compacted, restless, was_compacted, uses_wall_clock
    cdef object __weakref__

    @cython.locals(registry=LedgerTerms, known=cython.bint, said=list, middle=bytes, sample=ClockSample, low=cython.double, high=cython.double, seq=cython.double)
    cpdef bytes encode(self, RoundTrip round_trip, bytes prelude)

    cpdef apply_reply(self, RoundTrip round_trip)


cdef class RoundTrip:
    cdef public LedgerClient ledger
    cdef public list batch, said
    cdef public bytes epoch, reply_epoch, ident, stream
    cdef public long long first, number, received, sent, several, since, timeout_ns
    cdef public bint slow
    cdef public double lives, now, pause, quarantine, seq, shift, status, tally, waiting

    cpdef bytes open(self, bytes prelude=*)

    cpdef double held_up_until(self) except -1

    cdef long long expected_ns(self, ClockSample sample) except -1

    @cython.locals(ledger=LedgerClient, registry=LedgerTerms, sample=ClockSample, said=tuple, position=cython.Py_ssize_t)
    cpdef bint settle(self, reply) except -1

    cdef read(self, bytes reply)
