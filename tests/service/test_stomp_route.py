"""STOMP at /stomp of the service: that it is there, and for which pages."""

import json

import pytest
from tests.service.serving import serving
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from headway import Once
from headway.service import service_app
from headway.stomp import Frame, Parser, encode
from waiting import NEVER


@pytest.fixture(scope="module")
def client():
    with serving(service_app({"orders": Once("5min")}, key_frame_every=None)) as client:
        yield client


def open_stomp(client, **options):
    return connect(
        f"ws://127.0.0.1:{client.port}/stomp",
        subprotocols=[Subprotocol("v12.stomp")],
        proxy=None,
        open_timeout=NEVER,
        **options,
    )


def frame_of(socket):
    parser = Parser("1.2")
    parser.feed(socket.recv(timeout=NEVER))
    return parser.next()


def test_a_submit_over_http_is_a_change_over_stomp(client):
    with open_stomp(client) as socket:
        assert socket.subprotocol == "v12.stomp"
        socket.send(encode(Frame("CONNECT", {"accept-version": "1.2", "host": "a"})).decode())
        assert frame_of(socket).command == "CONNECTED"
        socket.send(encode(Frame("SUBSCRIBE", {"id": "0", "destination": "/topic/gates/orders"})).decode())
        key_frame = json.loads(frame_of(socket).body)
        over_http = client.get("/v1/gates/orders").body
        assert {**key_frame, "time": 0, "gate": "orders"} == {**over_http, "time": 0}
        client.post("/v1/gates/orders/events", {"event": "order 7"})
        changes = [json.loads(frame_of(socket).body) for _ in range(2)]
        assert changes == client.get("/v1/gates/orders/changes").body["changes"]


def test_a_page_from_elsewhere_may_not_connect(client):
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}):
        with pytest.raises(InvalidStatus, match="403"), open_stomp(client, additional_headers=headers):
            pass
    with open_stomp(client, additional_headers={"Origin": "http://localhost:9000"}) as socket:
        assert socket.subprotocol == "v12.stomp"
