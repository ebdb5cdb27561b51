cimport cython
from cpython.long cimport PyLong_AsLongLongAndOverflow
from headway.clock cimport Clock
from headway.core.pools cimport PoolRule, Pools, Turn


cdef bint _ATOMIC


cdef inline long long small(object ops):
    """The number if it fits 63 bits, else -1."""
    cdef int overflow = 0
    cdef long long number = PyLong_AsLongLongAndOverflow(ops, &overflow)
    return -1 if overflow else number


cdef class Pacer:
    cdef object __weakref__
    cdef Clock _clock
    cdef Pools _pools
    cdef bint _scoped, _warned_loop
    cdef long long _spin
    cdef object _lock, _local, _children

    @cython.locals(number=cython.longlong, now=cython.longlong)
    cdef long long _quick(self, ops) except? -2

    @cython.locals(mine=Pacer, rule=PoolRule)
    cdef Pacer _mine(self)

    cpdef _change(self, pace)
    cpdef _look(self)
    cdef _checked(self, ops)
    cdef Turn _join(self, ops, bell)
    cdef long long _until(self, Turn turn, long long now)
    cdef _cancel(self, Turn turn)
    cdef _settle(self)

    @cython.locals(turn=Turn)
    cdef _ring(self)
