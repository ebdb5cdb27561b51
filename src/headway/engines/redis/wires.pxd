cdef class Wire:
    cdef public object connection, reader, socket
    cdef public bytes ident
    cdef public bint hurried

    cpdef ask(self, bytes payload)

    cpdef read(self)
