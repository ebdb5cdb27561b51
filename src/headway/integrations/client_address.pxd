cimport cython


cdef class ClientAddress:
    cdef readonly str header
    cdef readonly bint trusts
    cdef bint _unix
    cdef tuple _trusted
    cdef int _prefix
    cdef bytes _header_name
    cdef object _of
    cdef dict _peers

    @cython.locals(peers=dict)
    cdef _of_peer(self, peer)

    cpdef of_scope(self, scope)
