cimport cython


cpdef bint is_ok(bytes data)

@cython.locals(text=bytes, own=bytes, carried=bytes)
cpdef bytes body_of(str event, str id, value)

@cython.locals(outcome=cython.long, length=cython.long, end=cython.long, clock=cython.double, due=cython.double)
cpdef tuple read_said(bytes data, long at, rule, str event, str id)
