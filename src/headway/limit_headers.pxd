cimport cython


cdef class LimitTexts:
    cdef readonly tuple limits, policy_pair, capacity_pair
    cdef readonly str text, name, policies, capacity
    cdef readonly bytes ratelimit, lines


cpdef long long until(double retry_after, double reset_after)

@cython.locals(t=cython.longlong)
cpdef bytes as_block(LimitTexts texts, left, double retry, double reset, bint denied)

@cython.locals(t=cython.longlong, pairs=list)
cpdef list as_pairs(LimitTexts texts, left, double retry, double reset, bint denied, bint legacy)

cpdef LimitTexts texts_of(limit)
