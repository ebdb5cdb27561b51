"""Where ledgers live. `memory://` is this process; `redis://` and its kin are shared, behind one seam (`base`)."""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

from headway.engines.base import Engine

__all__ = ["Engine", "redis_engine"]


def redis_engine(
    client: Any,
    *,
    namespace: str = "headway",
    lease: float | timedelta = 5.0,
    drift_ppm: float = 1000.0,
    strict: bool = False,
    timeout: float | timedelta = 0.25,
) -> Engine:
    """An engine around your own client of redis-py, with the options that a URI has in its query.

    >>> import redis
    >>> from headway import Limiter, redis_engine
    >>> client = redis.Redis(host="db", password="secret")
    >>> redis_engine(client, namespace="shop")
    <headway engine redis-py client to db:6379>
    >>> limiter = Limiter("100/minute", name="api", engine=redis_engine(client, namespace="shop"))

    A limiter takes the client itself as its `engine=` too; this is for options. The same client with the same options
    is the same engine. It may be a `redis.Redis`, a `redis.asyncio.Redis`, a `RedisCluster` or what a `Sentinel`
    gives by `master_for()`: any of them serves threads and tasks. Its connections stay its own; the engine makes
    others to the same servers. `timeout` is how long connecting may take.
    """
    package = importlib.import_module("headway.engines.redis")
    engine: Engine = package.open_client(
        client, timeout, namespace=namespace, lease=lease, drift_ppm=drift_ppm, strict=strict
    )
    return engine
