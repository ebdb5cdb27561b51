from headway.engines.redis.account cimport Talk


cdef class Request:
    cdef public object account, bell, error, waiter
    cdef public bytes command, epoch
    cdef public bint done, orphan, void
    cdef object __weakref__

    cpdef Py_ssize_t hear(self, Talk talk, tuple said, Py_ssize_t position) except -1


cdef class Ask(Request):
    cdef public tuple costs, marks
    cdef public object rows
    cdef public long long expires, heard, ready, slot, ticket
    cdef public double pause, quarantine, shift
    cdef public int verdict
    cdef public bint stood

    cpdef grant(self, double delay, tuple marks, double shift, bytes epoch, long long sent, long long received)
