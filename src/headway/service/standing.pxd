cimport cython
from headway.limit_headers cimport LimitTexts, as_block, texts_of

cdef double _INF
cdef long long _FOREVER
cdef double _SECOND


@cython.locals(
    texts=LimitTexts, wait=cython.longlong, reset=cython.longlong, retry_after=cython.double, reset_after=cython.double
)
cpdef standing_of_rows(list rows, metrics, bint denied)
