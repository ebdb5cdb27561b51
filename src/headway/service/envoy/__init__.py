"""Envoy's rate limit service (RLS v3) on headway limiters.

    messages   the two messages as values, with Envoy's names
    wire       what protobuf's wire format is made of: varints, tags, fields to skip
    codec      the messages as bytes, and back
    config     envoyproxy/ratelimit's YAML, and which rule a descriptor matches
    refunds    the grants that can still be given back
    decide     the decision: limiters, one for each rule, and what is answered
    quick      the usual request, decided in one compiled step: bytes in, bytes out
    shared_quick   the usual request on a shared engine
    stats      what was counted, under the names that dashboards know
    grpc_server, json_call   how the decision is asked for
    settings, served         as a part of `headway serve`

Everything but the last lines is without I/O of its own, apart from what the engine does.
"""
