"""A service on a shared engine gets a real server."""

from tests.redis.conftest import _shared, _wheel, valkey  # noqa: F401
