cimport cython
from headway.engines.redis.gates.codec cimport body_of, read_said


cdef class Together:
    cdef public object commands, loop
    cdef public list bodies, waiting
    cdef public set tasks
    cdef public long size

    @cython.locals(body=bytes)
    cpdef add(self, str event, str id, value)

    @cython.locals(batch=Batch)
    cpdef flush(self)


cdef class Batch:
    cdef public Together together
    cdef public list waiting
    cdef public bytes payload
    cdef public double deadline

    cpdef on_reply(self, reply)

    cpdef on_error(self, error)

    cpdef send_slowly(self, trouble=*)

    @cython.locals(at=cython.long, found=object)
    cpdef _deliver(self, bytes said)

    cpdef _fail(self, error)
