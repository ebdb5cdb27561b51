"""All that `make bench` measures, in this order: peers last, because some of them start threads."""

from bench import (
    calls,
    celery,
    clients,
    console,
    crowd,
    keys,
    llm,
    middleware,
    once,
    pacer,
    peers,
    prefetch,
    redis,
    remote,
    rls,
    service,
    stomp,
    waiters,
)
from bench.figure import Section

SECTIONS: tuple[Section, ...] = (
    calls.SECTION,
    crowd.SECTION,
    keys.SECTION,
    redis.SECTION,
    prefetch.SECTION,
    remote.SECTION,
    once.SECTION,
    stomp.SECTION,
    service.SECTION,
    clients.SECTION,
    celery.SECTION,
    middleware.SECTION,
    console.SECTION,
    llm.SECTION,
    rls.SECTION,
    waiters.SECTION,
    pacer.SECTION,
    peers.SECTION,
)

GROUPS = {
    "unkeyed": "One decision",
    "keyed": "One decision for a key, 10,000 live keys",
    "decorator": "A decorated function",
    "async": "An awaited decision",
    "redis": "One decision on Redis, one after another",
}
"""What the groups of the comparisons are called, in the order of the page and of the chart."""
