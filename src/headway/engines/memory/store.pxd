from headway.engines.memory.queue cimport Queue


cdef class MemoryStore(Queue):
    pass
