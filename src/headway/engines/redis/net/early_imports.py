"""What the first connection would import, imported before there is a thread that connects.

A module is imported under a lock of its own. A process that forks while another thread imports has that lock in the
child, taken by a thread that the child does not have: the child's first connection would wait for it for ever. So
whatever redis-py, the codecs of host names, and the reading of our own scripts import when they are used for the first
time is imported with the engine.
"""

from __future__ import annotations

import email.parser  # noqa: F401 - `importlib.metadata` reads with it the version that redis-py tells the server
import encodings.idna  # noqa: F401 - host names
import importlib.metadata
import importlib.readers
import importlib.resources.readers  # noqa: F401
import ssl  # noqa: F401

import hiredis  # noqa: F401
import redis.asyncio.connection
import redis.asyncio.retry
import redis.backoff
import redis.connection
import redis.retry  # noqa: F401
