# Keyword arguments without Cython's parser: `acquire(ops=1000)` is to cost what `acquire()` does. It has no Python spelling,
# so it stands here: core.py alone is the whole behaviour, and this finds the number sooner.
cimport cython
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject, PyTypeObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from headway.clock cimport Clock
from headway.core.pools cimport PoolRule, Pools, Turn


cdef extern from *:
    """
    typedef PyObject *(*headway_method)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);

    /* Put `ours` in the place of a method of a type; what was there, or NULL where it is called in another way. */
    static headway_method headway_replace(PyTypeObject *type, const char *name, headway_method ours) {
        PyMethodDef *method = type->tp_methods;
        for (; method != NULL && method->ml_name != NULL; method++) {
            if (strcmp(method->ml_name, name) == 0 && method->ml_flags == (METH_FASTCALL | METH_KEYWORDS)) {
                headway_method before = (headway_method)(void (*)(void))method->ml_meth;
                method->ml_meth = (PyCFunction)(void (*)(void))ours;
                return before;
            }
        }
        return NULL;
    }
    """
    ctypedef object (*headway_method)(object, PyObject *const *, Py_ssize_t, PyObject *)
    headway_method headway_replace(PyTypeObject *type, const char *name, headway_method ours)


cdef bint _ATOMIC
cdef long long NAP_NS, FAR_NS, NAPPING_NS


cdef inline long long small(object ops):
    """The number if it is an int of 1 to 63 bits, else 0."""
    cdef int overflow = 0
    cdef long long number
    if type(ops) is not int:
        return 0
    number = PyLong_AsLongLongAndOverflow(ops, &overflow)
    return 0 if overflow or number < 0 else number


cdef class PacerCore:
    cdef object __weakref__
    cdef readonly Clock _clock
    cdef public Pools _pools
    cdef public bint _scoped, _forked, _off
    cdef bint _plain, _warned_loop
    cdef long long _spin
    cdef public object _lock, _local, _children

    cpdef _choose(self)

    @cython.locals(now=cython.longlong)
    cdef long long _try_fast(self, long long number) except? -2

    @cython.locals(mine=PacerCore)
    cpdef PacerCore _mine(self)

    cdef _checked(self, ops)
    cdef Pools _join(self, Turn turn)
    cdef bint _early(self, Pools pools, Turn turn, long long now)
    cdef long long _begin(self, Pools pools, Turn turn, long long now) except? -2
    cdef long long _until(self, Turn turn, long long now)
    cdef _cancel(self, Pools pools, Turn turn)
    cdef _settle(self, Pools pools)
    cdef _notice(self)

    @cython.locals(turn=Turn)
    cpdef _ring(self)


cdef headway_method parsed
cdef object OPS


cdef inline object acquire_directly(object self, PyObject *const *args, Py_ssize_t count, PyObject *names):
    cdef PacerCore core = <PacerCore>self
    cdef long long delay
    if names is NULL:
        if count == 0:
            delay = core._try_fast(1)
            return delay if delay >= 0 else core._wait(1)
    elif count == 0 and PyTuple_GET_SIZE(<object>names) == 1 and <PyObject *>PyTuple_GET_ITEM(<object>names, 0) is <PyObject *>OPS:
        count = 1
        names = NULL
    if count == 1 and names is NULL:
        delay = core._try_fast(small(<object>args[0]))
        return delay if delay >= 0 else core._wait(<object>args[0])
    return parsed(self, args, count, names)


cdef inline void quicken():
    global parsed, OPS
    OPS = "ops"
    parsed = headway_replace(<PyTypeObject *>PacerCore, "acquire", <headway_method>acquire_directly)
