cimport cython


@cython.final
cdef class Decide:
    pass


@cython.final
@cython.freelist(32)
cdef class Park:
    cdef public object until
    cdef public long long woke
