cimport cython
from headway.core.ledger cimport Ledger, Rule
from headway.core.wait_queue cimport Ticket
from headway.denied cimport Denied, new_denied
from headway.flows.drive cimport in_context, run, running_loop
from headway.engines.memory.store cimport MemoryStore
from cpython.ref cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from headway.limiter.permits cimport HeldPermit, Permit, new_permit
from headway.limiter.shared cimport SharedLimiter


cdef bint _ATOMIC, _GIL
cdef int _ABANDON
cdef Permit REFUSED
cdef object _ONE

cdef bint refused(Permit permit)
cdef long long current_task()
cdef bint _plausible(timeout)


cdef inline long long this_thread():
    return <long long>PyThread_get_thread_ident()


cdef inline bint only_ours(LocalLimiter limiter, MemoryStore store, bint held):
    """Whether the spare permit is referred to by nothing but the place where it is kept."""
    if not _GIL:
        return False
    if held:
        return store.spare is not None and (<PyObject*>store.spare).ob_refcnt == 1
    return limiter._spare is not None and (<PyObject*>limiter._spare).ob_refcnt == 1


cdef class LocalLimiter:
    cdef public MemoryStore _store
    cdef public object _leases, _timeout_ns, _max_waiting, _listener, _lock
    cdef public SharedLimiter _shared
    cdef list _outer
    cdef Permit _entered, _spare
    cdef public bint _closed, _plain

    cdef _try(self, key, cost)

    cdef Permit _grant_quickly(self, key, cost, bint bracket)

    @cython.locals(store=MemoryStore)
    cdef _decide_quickly(self, key, cost, bint bracket, bint explain)

    @cython.locals(
        permit=Permit, denied=Denied, held=cython.bint, ours=cython.bint, ledger=Ledger, now=cython.longlong,
        wait=cython.longlong,
    )
    cdef _try_fast(self, MemoryStore store, key, bint bracket, bint explain)

    cdef Ticket _ticket(self, key, cost, bint held)

    @cython.locals(store=MemoryStore, ticket=Ticket, permit=Permit)
    cdef _try_locked(self, key, cost)

    @cython.locals(store=MemoryStore, ledger=Ledger, permit=Permit)
    cpdef Permit _permit_for(self, Ticket ticket)

    @cython.locals(rule=Rule)
    cdef bint _holds(self, Ledger ledger, bint bracket)

    cpdef tuple _request(self, key, cost)

    @cython.locals(store=MemoryStore)
    cdef _queue(self, Ticket ticket, key, cost, timeout)

    cdef Permit _waited(self, Ticket ticket)

    cdef Permit _enter(self, Permit permit)

    cdef _push(self, Permit permit)

    @cython.locals(permit=Permit)
    cdef _leave(self, error)

    @cython.locals(
        permit=Permit, owner=cython.longlong, task=cython.longlong, place=cython.Py_ssize_t, entered=list
    )
    cdef tuple _without_own(self)
