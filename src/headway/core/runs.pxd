cimport cython


cdef long long NEVER


@cython.final
cdef class Runs:
    cdef long long[::1] cells
    cdef readonly Py_ssize_t head, mask, size
    cdef readonly long long total, first

    cpdef long long last_time(self)

    @cython.locals(last=cython.Py_ssize_t, spot=cython.Py_ssize_t)
    cpdef long long add(self, long long time, long long count)

    @cython.locals(low=cython.Py_ssize_t, i=cython.Py_ssize_t, spot=cython.Py_ssize_t, before=cython.Py_ssize_t)
    cpdef long long insert(self, long long time, long long count)

    @cython.locals(low=cython.Py_ssize_t, high=cython.Py_ssize_t, middle=cython.Py_ssize_t)
    cdef Py_ssize_t pool_of(self, long long time) noexcept

    @cython.locals(count=cython.longlong)
    cpdef long long pop(self)

    @cython.locals(low=cython.Py_ssize_t, spot=cython.Py_ssize_t, found=cython.longlong)
    cpdef long long remove(self, long long time, long long count)

    cdef void trim(self) noexcept

    @cython.locals(i=cython.Py_ssize_t, spot=cython.Py_ssize_t)
    cpdef long long time_of(self, long long count)

    @cython.locals(i=cython.Py_ssize_t)
    cpdef shift(self, long long by)

    @cython.locals(places=cython.Py_ssize_t)
    cdef make_room(self)

    @cython.locals(twin=Runs)
    cpdef Runs copy(self)

    @cython.locals(i=cython.Py_ssize_t, spot=cython.Py_ssize_t)
    cpdef tuple pairs(self)
