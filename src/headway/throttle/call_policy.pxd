# The vectorcall protocol (PEP 590) for ThrottledFunction. It has no Python spelling, so it stands here: calls.py alone is the
# whole behaviour, and this is the same without packing and unpacking arguments.
cimport cython
from cpython.object cimport PyObject, PyTypeObject
from headway.limiter.local cimport LocalLimiter, refused
from headway.limiter.permits cimport Permit


cdef extern from *:
    """
    static void headway_enable_vectorcall(PyTypeObject *type, Py_ssize_t offset) {
        if (type->tp_vectorcall_offset != offset) {
            type->tp_vectorcall_offset = offset;
            type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
            PyType_Modified(type);
        }
    }
    """
    void headway_enable_vectorcall(PyTypeObject *type, Py_ssize_t offset)

cdef extern from "Python.h":
    ctypedef PyObject *(*vectorcallfunc)(PyObject *, PyObject *const *, size_t, PyObject *)
    object PyObject_Vectorcall(object callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
    Py_ssize_t PyVectorcall_NARGS(size_t nargsf)


cdef class CallPolicy:
    cdef object __weakref__
    cdef readonly object limiter, key, cost, settling, timeout, answered, not_sent, source
    cdef public bytes token
    cdef readonly LocalLimiter desk
    cdef readonly bint skip, simple


cdef class ThrottledFunction:
    cdef dict __dict__
    cdef object __weakref__
    cdef readonly CallPolicy bracket
    cdef readonly object function
    cdef vectorcallfunc vectorcall

    @cython.locals(bracket=CallPolicy, permit=Permit)
    cdef Permit begin(self)


cdef inline object call_directly(
    object callable, PyObject *const *args, size_t nargsf, PyObject *kwnames
):
    cdef ThrottledFunction throttled = <ThrottledFunction>callable
    cdef Permit permit = throttled.begin()
    cdef Py_ssize_t count, i
    if permit is None:
        count = PyVectorcall_NARGS(nargsf)
        positional = [<object>args[i] for i in range(count)]
        named = {}
        if kwnames is not NULL:
            for i, name in enumerate(<tuple>kwnames):
                named[name] = <object>args[count + i]
        return throttled.__call__(*positional, **named)
    try:
        result = PyObject_Vectorcall(throttled.function, args, nargsf, kwnames)
    except BaseException as error:
        throttled.bracket.close(permit, error)
        raise
    permit._finish(None)
    return result


cdef inline void equip(ThrottledFunction throttled):
    throttled.vectorcall = <vectorcallfunc>call_directly
    headway_enable_vectorcall(
        <PyTypeObject *>ThrottledFunction, <char *>&throttled.vectorcall - <char *><PyObject *>throttled
    )
