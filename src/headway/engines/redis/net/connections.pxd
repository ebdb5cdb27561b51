cdef class Connection:
    cdef public object connection, reader, room, socket
    cdef public bytes ident
    cdef public bint hurried
    cdef public long long until

    cpdef call(self, bytes payload)

    cpdef read(self)


cdef class LoopConnection:
    cdef public object backlog, broken, connection, loop, pending, pool, transport
    cdef object _end, _late, _timer, _writer
    cdef public bytes ident
    cdef double _due
    cdef public double made_by

    cpdef send(self, bytes payload, hearer, double deadline)
