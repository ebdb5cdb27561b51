"""The commands that look at servers get real ones."""

from tests.redis.conftest import _shared, _shared_cluster, _wheel, cluster, make_server, server, valkey  # noqa: F401
