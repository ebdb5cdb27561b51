cimport cython


cpdef long long until(double retry_after, double reset_after)

@cython.locals(t=cython.longlong)
cpdef bytes as_block(texts, left, double retry, double reset, bint denied)

@cython.locals(t=cython.longlong, pairs=list)
cpdef list as_pairs(texts, left, double retry, double reset, bint denied, bint legacy)

cpdef texts_of(limit)
