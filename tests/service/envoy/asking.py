"""Requests in short, for the tests of the service."""

import asyncio
import itertools

from headway.service.envoy.config import read_config
from headway.service.envoy.decide import RateLimitService
from headway.service.envoy.messages import Code, Descriptor, Entry, RateLimitRequest

OK, OVER = Code.OK, Code.OVER_LIMIT
_numbers = itertools.count()


def service_of(text, *, fixed=False, **options):
    """A service for the domain "d" with these descriptors; its ledgers are its own."""
    config = read_config({"limits.yaml": f"domain: d\ndescriptors:\n{text}"}, fixed=fixed)
    return RateLimitService(config, namespace=f"test-{next(_numbers)}", **options)


def descriptor(*pairs, **fields):
    """descriptor("user=alice", "path=/x", hits_addend=2)"""
    return Descriptor(tuple(Entry(*pair.split("=", 1)) for pair in pairs), **fields)


def request(*descriptors, hits_addend=0, domain="d"):
    """Descriptors, or texts such as "user=alice" for those of one entry."""
    made = tuple(descriptor(each) if isinstance(each, str) else each for each in descriptors)
    return RateLimitRequest(domain, made, hits_addend)


def ask(service, *descriptors, **fields):
    return asyncio.run(service.decide(request(*descriptors, **fields)))


def codes(response):
    return [status.code for status in response.statuses]


def remaining(response):
    return [status.limit_remaining for status in response.statuses]


def passed(service, descriptor, tries, **fields):
    """How many of so many equal requests are within the limits."""
    return sum(ask(service, descriptor, **fields).overall_code is OK for _ in range(tries))
