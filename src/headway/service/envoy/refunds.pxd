cimport cython


@cython.no_gc
@cython.final
@cython.freelist(64)
cdef class Grant:
    cdef public object permit
    cdef public long long cost, at


@cython.locals(grant=Grant)
cdef Grant new_grant(object permit, long long cost, long long at)


cdef class Refunds:
    cdef readonly long long period_ns
    cdef readonly dict _grants
    cdef object _left_out_until
    cdef Py_ssize_t _most, _most_of_key, _most_keys, _permits, _sweep_at

    @cython.locals(last=Grant)
    cpdef add(self, key, permit, long long cost, long long now)

    @cython.locals(grant=Grant, left=cython.longlong, given=cython.longlong, taken=cython.longlong)
    cpdef give_back(self, key, long long hits, long long now)

    cdef _new_row(self, key, long long now)

    @cython.locals(grant=Grant)
    cdef _expire(self, row, long long now)

    cdef _sweep(self, long long now)
