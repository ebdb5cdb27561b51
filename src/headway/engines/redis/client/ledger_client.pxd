from headway.clock cimport Clock


cdef class Reply:
    cdef public bytes reply_epoch
    cdef public long long received, sent, several, since
    cdef public double governed, lives, now, pause, pause_end, quarantine, seq, shift, status, tally, waiting


cdef class CommandFrame:
    cdef public dict middles
    cdef public bytes opening, opening_of_two, records, reopening
    cdef public Py_ssize_t parts, width


cdef class LedgerTerms:
    cdef public object clock_samples, engine
    cdef public Clock clock
    cdef public bytes text
    cdef public double drift, generation, lease, sharded
    cdef public long long countdown, timeout_ns
    cdef public bint closed, with_status
    cdef public dict ledgers

    cpdef LedgerClient ledger(self, tuple keys)


cdef class LedgerClient:
    cdef public LedgerTerms registry
    cdef public CommandFrame frame
    cdef public object governing, release_stream, pause_state, key, batchers, last_loop_batcher, thread_batcher, standing, sleepers, leases, rota, rules, script, spare, ends
    cdef public tuple keys, lookup_keys
    cdef public bytes epoch, ident, over, text
    cdef public list leased
    cdef public double governed, halted, lent_ttl, seq, shift, waiting
    cdef public long long allowance_ns, expires, replied_at, poll_at, seen, visited
    cdef public bint bracketed, can_queue, held, lends, compacted, restless, was_compacted, uses_wall_clock
    cdef object __weakref__

    cpdef apply_reply(self, Reply reply)
