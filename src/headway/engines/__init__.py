"""Where ledgers live. `memory://` is this process; `redis://` and its kin are shared, behind the same front ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


class Engine:
    """A shared place for ledgers, as `redis_engine` makes it: for `engine=`, and for the type of what holds one.

    >>> import redis
    >>> from headway import Engine, redis_engine
    >>> engine: Engine = redis_engine(redis.Redis(host="db"), namespace="shop")
    >>> engine.address, engine.namespace
    ('redis-py client to db:6379', 'shop')
    >>> engine.close()

    Limiters that name the same URI, or the same client, share one; it is not opened before the first question.
    """

    address: str
    """Where it is, without passwords."""
    namespace: str
    """What the names of all its keys begin with."""

    def close(self) -> None:
        """End its connections and threads, when no limiter uses it any more."""
        raise NotImplementedError


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
    from headway.engines.redis import engine_of

    return engine_of(client, timeout, namespace=namespace, lease=lease, drift_ppm=drift_ppm, strict=strict)
