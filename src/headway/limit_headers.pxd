cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy


cdef long long _SECOND, _MOST, _FOREVER, _EXACT


cdef class LimitTexts:
    cdef readonly object limit
    cdef readonly tuple limits, policy_pair, capacity_pair
    cdef readonly str text, name, policies, capacity
    cdef readonly bytes ratelimit, lines


cdef LimitTexts _latest


cdef inline char* decimal(char* end, long long number) noexcept:
    """Write a number that is not below 0, the last digit first; returns where it begins."""
    while True:
        end -= 1
        end[0] = <char>(48 + number % 10)
        number //= 10
        if not number:
            return end


cdef inline bytes written(bytes name, long long r, long long t):
    """`b"%b;r=%d;t=%d" % (name, r, t)`, which a general formatter takes ten times as long for."""
    cdef char text[64]
    cdef char* end = text + 64
    cdef char* at = end
    cdef Py_ssize_t size = PyBytes_GET_SIZE(name)
    if t >= 0:
        at = decimal(at, t) - 3
        memcpy(at, b";t=", 3)
    at = decimal(at, r) - 3
    memcpy(at, b";r=", 3)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size + (end - at))
    memcpy(PyBytes_AS_STRING(made), PyBytes_AS_STRING(name), size)
    memcpy(PyBytes_AS_STRING(made) + size, at, end - at)
    return made


cpdef long long until(double retry_after, double reset_after)

@cython.locals(ns=cython.longlong)
cpdef long long until_of_ns(long long wait, long long reset)

@cython.locals(r=cython.longlong, value=bytes, pairs=list)
cpdef list pairs_until(LimitTexts texts, long long left, long long t, bint legacy)

@cython.locals(t=cython.longlong)
cpdef bytes as_block(LimitTexts texts, left, double retry, double reset, bint denied)

@cython.locals(t=cython.longlong, pairs=list)
cpdef list as_pairs(LimitTexts texts, left, double retry, double reset, bint denied, bint legacy)

@cython.locals(found=LimitTexts)
cpdef LimitTexts texts_of(limit)
