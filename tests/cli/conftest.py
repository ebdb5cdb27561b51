"""The commands that look at servers get real ones."""

from tests.redis.conftest import (  # noqa: F401
    _shared,
    _shared_cluster,
    _wheel,
    cluster,
    connect,
    make_server,
    server,
    valkey,
)
