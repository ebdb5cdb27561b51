"""What a watcher of a gate makes of frames: never wrong without knowing, and the server's clock for the countdown."""

import asyncio
import json
import time
from contextlib import aclosing

import pytest
from tests.service.serving import serving

from headway import Once
from headway.once.stomp.wire import message_of
from headway.service import service_app
from headway.service.client import Refused, ServiceUnavailable
from headway.service.watching import Back, KeyFrame, Lost, Watcher, _Broken
from headway.stomp import Frame
from waiting import NEVER


class Feed:
    """Frames of a gate, as the server encodes them."""

    def __init__(self):
        self.gate = Once(60, "strict")

    def frame(self, item):
        message = message_of(item, self.gate)
        return Frame("MESSAGE", {"subscription": "0", **message.headers}, message.body)

    def key_frame(self):
        return self.frame(self.gate.snapshot())

    def changes(self, since=0):
        return [self.frame(change) for change in self.gate.changes(since)]


@pytest.fixture
def feed():
    return Feed()


@pytest.fixture
def watcher():
    return Watcher("http://127.0.0.1:1", "alarms")


def since(watcher):
    return watcher._subscribe().headers.get("since")


def test_it_follows_a_gate_from_a_key_frame_on(feed, watcher):
    feed.gate.submit("disk full")
    first = watcher._take(feed.key_frame())
    assert isinstance(first, KeyFrame)
    assert not first.missed
    assert (watcher.mode, watcher.duration, watcher.clock) == ("strict", 60.0, 1)
    feed.gate.submit("disk full")
    feed.gate.submit("fan stuck")
    found = [watcher._take(frame) for frame in feed.changes(1)]
    assert [change.status.name for change in found] == ["INVALIDATED", "SUBMITTED"]
    assert watcher.pending == feed.gate.snapshot().pending
    assert since(watcher) == feed.changes(2)[0].headers["message-id"]


def test_a_message_that_comes_twice_is_left_out(feed, watcher):
    watcher._take(feed.key_frame())
    feed.gate.submit("a")
    (frame,) = feed.changes()
    assert watcher._take(frame) is not None
    assert watcher._take(frame) is None
    assert watcher.clock == 1


def test_a_gap_ends_the_connection_and_a_key_frame_comes_next(feed, watcher):
    watcher._take(feed.key_frame())
    for event in ("a", "b", "c"):
        feed.gate.submit(event)
    with pytest.raises(_Broken, match="change 3 does not follow on 0"):
        watcher._take(feed.changes()[2])
    assert since(watcher) is None
    again = watcher._take(feed.key_frame())
    assert watcher.clock == 3
    assert isinstance(again, KeyFrame)


def test_a_change_before_any_key_frame_is_a_gap(feed, watcher):
    feed.gate.submit("a")
    with pytest.raises(_Broken):
        watcher._take(feed.changes()[0])


def test_a_key_frame_says_whether_changes_were_missed(feed, watcher):
    watcher._take(feed.key_frame())
    assert not watcher._take(feed.key_frame()).missed  # one of those at intervals
    feed.gate.submit("a")
    assert watcher._take(feed.key_frame()).missed
    assert watcher._take(Feed().key_frame()).missed  # another gate has its name


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"{}", b'{"clock": 1}', b'{"clock": 1, "time": 1, "began": 1, "pending": [{}]}', b"[" * 10**5,
     b'{"clock": 1, "time": 1, "began": 1, "pending": [], "duration": 0, "mode": "only"}',
     b'{"clock": 1, "time": 1, "began": 1, "pending": [], "duration": 1, "mode": "maybe"}',
     b'{"clock":1,"status":"LOST","id":"a","event":"b","value":null,"time":1,"began":1}'],
)  # fmt: skip
def test_a_message_that_cannot_be_read_ends_the_connection(watcher, body):
    with pytest.raises(_Broken, match="cannot be read"):
        watcher._take(Frame("MESSAGE", {}, body))


def test_an_error_at_first_is_told_and_later_only_costs_the_connection(watcher):
    error = Frame("ERROR", {"message": "there is no gate"}, b"")
    with pytest.raises(Refused, match="there is no gate"):
        watcher._take(error)
    watcher._began = True
    with pytest.raises(_Broken, match="there is no gate"):
        watcher._take(error)


def test_the_countdown_goes_by_the_clock_of_the_server(feed, watcher):
    """The server is in 1970, and a message that took long does not turn its clock back."""
    assert watcher.now() is None
    body = {"clock": 0, "began": 5.0, "duration": 60, "mode": "strict", "pending": []}
    for at in (1000.0, 990.0):
        watcher._take(Frame("MESSAGE", {}, json.dumps({**body, "time": at}).encode()))
    assert 1000 <= watcher.now() < 1000 + NEVER


# -- on a server ----------------------------------------------------------------------------------------------


def run(watching):
    return asyncio.run(asyncio.wait_for(watching, NEVER))


def test_it_equals_the_gate_through_cuts_of_the_connection():
    gate = Once("1h", "strict")

    async def watched(url):
        watcher = Watcher(url, "alarms")
        seen = []
        lost = back = 0
        async for item in watcher.watch():
            if isinstance(item, Lost):
                lost += 1
                gate.submit(f"while away {lost}")
            elif isinstance(item, Back):
                back += 1
            elif isinstance(item, KeyFrame):
                assert not item.missed
                gate.submit("first")
            else:
                seen.append(item.clock)
                if lost < 3 and item.clock == 1 + lost:
                    cuts.drop()
                elif item.clock == 4:
                    break
        return seen, watcher.pending, (lost, back)

    cuts = Cuts(service_app({"alarms": gate}))
    with serving(cuts) as client:
        seen, pending, lost = run(watched(client.url))
        expected = gate.snapshot().pending
    assert (seen, lost) == ([1, 2, 3, 4], (3, 3))
    assert pending == expected


def test_it_resumes_at_another_server(tmp_path):
    """Two servers on one engine; the first one ends, and the address leads to the other, as behind a balancer."""
    engine = f"embedded://{tmp_path}/engine"
    first, second = (Once("1h", "strict", name="alarms", engine=engine, engine_timeout=5) for _ in range(2))

    async def watched(url, other):
        watcher = Watcher(url, "alarms")
        seen: list[tuple[int, str]] = []
        async with aclosing(watcher.watch()) as items:
            async for item in items:
                if isinstance(item, Lost):
                    watcher._address = other
                    second.submit("while away")
                elif isinstance(item, Back):
                    assert seen == [(1, "one")]  # it comes before what was missed
                elif isinstance(item, KeyFrame):
                    assert not item.missed
                    await first.submit_async("one")
                else:
                    seen.append((item.clock, item.event))
                    if item.clock == 1:
                        cuts.drop()
                    elif item.clock == 2:
                        return seen
        raise AssertionError

    cuts = Cuts(service_app({"alarms": first}))
    with serving(cuts) as one, serving(service_app({"alarms": second})) as two:
        seen = run(watched(one.url, two.url.replace("http", "ws", 1) + "/stomp"))
    assert seen == [(1, "one"), (2, "while away")]


class Cuts:
    """Around an application: ends its WebSockets when it is told to."""

    def __init__(self, app):
        self._app = app
        self._open: set[asyncio.Event] = set()

    def drop(self):
        for event in list(self._open):
            event.set()

    async def __call__(self, scope, receive, send):
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        cut = asyncio.Event()
        self._open.add(cut)
        served = asyncio.create_task(self._app(scope, receive, send))
        cutting = asyncio.create_task(cut.wait())
        await asyncio.wait({served, cutting}, return_when=asyncio.FIRST_COMPLETED)
        self._open.discard(cut)
        for task in (served, cutting):
            task.cancel()
        await asyncio.gather(served, cutting, return_exceptions=True)


async def first(watcher):
    async with aclosing(watcher.watch()) as items:
        return await anext(items)


def test_an_unknown_gate_and_a_server_without_stomp():
    with serving(service_app({"alarms": Once(60)})) as client:
        with pytest.raises(Refused, match="there is no gate 'nope'; gates: alarms"):
            run(first(Watcher(client.url, "nope")))
        with pytest.raises(
            ServiceUnavailable, match="the server answered 403 instead of opening a WebSocket"
        ):
            run(first(Watcher(f"{client.url}/elsewhere", "alarms")))


def test_a_gate_with_an_odd_name_and_a_long_key_frame():
    gate = Once("1h", "strict")
    for number in range(5000):
        gate.submit(f"event {number}", value="v" * 200)
    with serving(service_app({"a/b ü%": gate}, max_unsent=1 << 23)) as client:
        item = run(first(Watcher(client.url, "a/b ü%")))
        assert item.snapshot.pending == gate.snapshot().pending


def test_a_silent_server_is_noticed(monkeypatch):
    """Heart-beats were agreed on, and none comes."""
    monkeypatch.setattr("headway.service.watching.HEART_BEAT", (100, 100))

    async def silent(scope, receive, send):
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"].endswith("shutdown"):
                    return
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        connected = "CONNECTED\nversion:1.2\nheart-beat:100,0\n\n\0"
        await send({"type": "websocket.send", "text": connected})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    begin = time.monotonic()
    with serving(silent) as client, pytest.raises(ServiceUnavailable, match="the server is silent"):
        run(first(Watcher(client.url, "alarms")))
    assert time.monotonic() - begin < NEVER / 2
