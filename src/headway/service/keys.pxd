cimport cython


cdef class KeyTable:
    cdef public Py_ssize_t most
    cdef public object latest
    cdef public bint used_without_key
    cdef dict _due
    cdef double _next_pass

    @cython.locals(missing=list)
    cpdef bint admits(self, key, double now)

    cpdef double retry_after(self, double now)
    cpdef note(self, key, double due)
