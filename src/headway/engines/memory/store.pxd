from headway.engines.memory.queue cimport Queue


cdef class Book(Queue):
    pass
