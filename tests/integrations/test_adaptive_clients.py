"""A client that knows no limit finds the one of a real server, which tells nothing but 429."""

import pytest

from headway import Limiter
from integrations.clients import CLIENTS
from integrations.own_process import StrictServer

pytestmark = [pytest.mark.slow, pytest.mark.realtime]


@pytest.mark.parametrize("client", ["aiohttp", "requests"])
def test_a_client_finds_a_window_that_the_server_hides(client):
    limiter = Limiter("adaptive 2/s to 500/s from 10/s")
    with StrictServer(40, 1) as server:
        urls = [f"{server.url}/{number}" for number in range(240)]
        statuses = CLIENTS[client](limiter, urls, retries=8)
        figures = server.figures()
    assert statuses == [200] * 240
    assert figures["refused"] <= 24  # most of them when the limit was met for the first time
    assert 8 <= (limiter.rate() or 0) <= 60


def test_a_server_that_says_how_long_to_wait_is_left_alone():
    limiter = Limiter("adaptive 2/s to 500/s from 200/s")
    with StrictServer(10, 1, "retry-after") as server:
        statuses = CLIENTS["requests"](limiter, [f"{server.url}/{number}" for number in range(30)], retries=8)
        figures = server.figures()
    assert statuses == [200] * 30
    assert figures["refused"] <= 30
