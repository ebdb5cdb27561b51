"""`/v1/live` in virtual time: what is told of limits and gates, to how many, and at what cost."""

import asyncio
import json
import random
from contextlib import asynccontextmanager
from typing import Any

from tests.service.virtual import problem, serve

from headway.limiter.limiter import Limiter
from headway.service.live import limits as live_limits
from headway.service.live import sampler as live_sampler
from headway.service.live.sampler import Watcher

CONFIG = """
[limits.api]
limit = "3/minute"
[limits.calls]
limit = "2 concurrent"
lease = 20
[limits.llm]
limit = { requests = "10/minute", tokens = "100/minute" }
[limits.free]
unlimited = true
[gates.alarms]
duration = "30s"
mode = "strict"
"""
TOKENS = '[tokens.eye]\ntoken = "read-token-0123456789"\nrole = "read"\n'


class Stream:
    """A watcher over ASGI, with the state that follows from what it was told."""

    def __init__(self):
        self.events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.sent: list[Any] = []
        self.state: Any = None
        self.task: Any = None
        self.kinds = []
        self._text = ""

    async def send(self, message):
        self.sent.append(message)
        self._text += message.get("body", b"").decode()
        *whole, self._text = self._text.split("\n\n")
        for block in whole:
            lines = dict(line.split(": ", 1) for line in block.splitlines())
            if "event" in lines:
                self.events.put_nowait((lines["event"], json.loads(lines["data"])))

    async def next(self):
        """The next event, applied."""
        kind, data = await asyncio.wait_for(self.events.get(), 100)
        self.kinds.append(kind)
        if kind == "state":
            self.state = data
        elif kind == "change":
            self.state = applied(self.state, data)
        return kind, data

    async def until(self, wanted):
        while not wanted(self.state):
            await self.next()
        return self.state

    def limit(self, name):
        return next(limit for limit in self.state["limits"] if limit["name"] == name)


def applied(state, change):
    """The state after a change, as the page makes it."""
    found = dict(change)
    for part in ("limits", "gates"):
        by_name = {one["name"]: one for one in state[part]}
        for one in change[part]:
            known = by_name.get(one["name"])
            if part == "limits" and known is not None:
                for series in ("granted_series", "denied_series"):
                    moved = known[series] + [0] * (change["bin"] - state["bin"])
                    one[series] = [*moved[:-1], *one[series]][-live_limits.BINS :]
            by_name[one["name"]] = one
        for name, one in by_name.items():
            if part == "limits" and name not in [limit["name"] for limit in change[part]]:
                for series in ("granted_series", "denied_series"):
                    one[series] = (one[series] + [0] * (change["bin"] - state["bin"]))[-live_limits.BINS :]
        found[part] = [one for name, one in by_name.items() if f"{part}/{name}" not in change["gone"]]
    found["gone"] = []
    return found


@asynccontextmanager
async def watching(peer, **headers):
    stream, gone = Stream(), asyncio.Event()
    head = {"host": "localhost", "accept": "text/event-stream", **headers}
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/live",
        "raw_path": b"/v1/live",
        "headers": [(name.encode(), value.encode()) for name, value in head.items()],
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    stream.task = asyncio.ensure_future(peer.app(scope, receive, stream.send))
    try:
        yield stream
    finally:
        gone.set()
        await asyncio.wait_for(stream.task, 100)


async def look(peer):
    reply = await peer.get("/v1/live")
    assert reply.status_code == 200
    assert reply.headers["cache-control"] == "no-store"
    return reply.json()


def by_name(parts):
    return {part["name"]: part for part in parts}


def test_the_state_has_every_limit_as_it_stands():
    async def test(peer):
        for key in ("alice", "alice", "alice", "alice", "bob"):
            await peer.acquire("api", key=key)
        await peer.acquire("calls", key="alice")
        await peer.acquire("llm", cost={"tokens": 30})
        state = await look(peer)
        limits = by_name(state["limits"])
        assert list(limits) == ["api", "calls", "llm", "free"]
        assert (limits["api"]["granted"], limits["api"]["denied"], limits["api"]["keys"]) == (4, 1, 2)
        assert limits["api"]["granted_series"] == [4]
        assert limits["api"]["denied_series"] == [1]
        assert limits["api"]["denied_rate"] > 0
        (ledger,) = limits["api"]["ledgers"]
        assert ledger == {
            "key": "bob",
            "parts": [{"limit": "3/minute", "metric": None, "capacity": 3, "remaining": 2}],
            "waiting": 0,
            "in_flight": 0,
        }
        (holder,) = limits["calls"]["holders"]
        assert (holder["key"], holder["lease"], limits["calls"]["permits"]) == ("alice", 20, 1)
        assert abs(holder["expires"] - state["time"] - 20) < 0.2
        parts = limits["llm"]["ledgers"][0]["parts"]
        assert [(part["metric"], part["remaining"]) for part in parts] == [("requests", 9), ("tokens", 70)]
        assert limits["free"]["unlimited"]
        assert limits["free"]["ledgers"] == []
        assert (state["engine"], state["engine_up"], state["more_limits"]) == ("memory://", True, 0)

    serve(CONFIG, test)


def test_a_permit_id_is_not_told():
    async def test(peer):
        permit = (await peer.acquire("calls")).json()["permit"]
        reply = await peer.get("/v1/live")
        assert permit not in reply.text
        assert permit[:6] not in reply.text

    serve(CONFIG, test)


def test_a_stream_begins_with_the_state_and_goes_on_with_changes():
    async def test(peer):
        async with watching(peer) as stream:
            assert await stream.next() == ("hello", {"role": "admin", "token": "", "version": "0.1.0"})
            kind, _ = await stream.next()
            assert kind == "state"
            begun = peer.now
            await peer.acquire("api", key="alice")
            kind, change = await stream.next()
            assert kind == "change"
            assert peer.now - begun <= live_sampler.TICK + 0.01
            (limit,) = change["limits"]
            assert (limit["name"], limit["granted"], limit["granted_series"]) == ("api", 1, [1])
            assert limit["ledgers"][0]["parts"][0]["remaining"] == 2
            assert change["gates"] == []
            head = stream.sent[0]
            assert (b"content-type", b"text/event-stream; charset=utf-8") in head["headers"]

    serve(CONFIG, test)


def test_a_stream_where_nothing_happens_says_so_now_and_then():
    async def test(peer):
        async with watching(peer) as stream:
            await stream.until(lambda state: state is not None)
            begun = peer.now
            kind, change = await stream.next()
            assert (kind, change["limits"], change["gates"]) == ("change", [], [])
            assert peer.now - begun <= live_sampler.QUIET + live_sampler.TICK

    serve(CONFIG, test)


def test_changes_make_the_state_that_a_look_shows():
    """Whatever happens, a watcher that applied every change has what a newcomer is told."""

    async def test(peer):
        draw = random.Random(7)
        async with watching(peer) as stream:
            await stream.until(lambda state: state is not None)
            for turn in range(60):
                what = draw.randrange(6)
                if what < 3:
                    await peer.acquire(draw.choice(["api", "calls", "free"]), key=draw.choice("abc"))
                elif what == 3:
                    await peer.put(f"/v1/limits/x{draw.randrange(3)}", {"limit": f"{turn + 1}/minute"})
                elif what == 4:
                    await peer.delete(f"/v1/limits/x{draw.randrange(3)}")
                else:
                    await peer.post("/v1/gates/alarms/events", {"event": draw.choice("ab")})
                await asyncio.sleep(draw.choice([0.1, 0.5, 3, 20]))
            await peer.put("/v1/limits/last", {"limit": "1/s"})
            await stream.until(lambda state: "last" in by_name(state["limits"]))
            for _ in range(4):
                await stream.next()
            now = await look(peer)
            while not stream.events.empty():
                await stream.next()
            told = stream.state
            for name, limit in by_name(now["limits"]).items():
                assert by_name(told["limits"])[name] == limit
            assert by_name(told["limits"]).keys() == by_name(now["limits"]).keys()
            assert told["gates"] == now["gates"]
            assert stream.kinds.count("state") == 1
            assert len(now["limits"][0]["granted_series"]) == live_limits.BINS

    serve(CONFIG, test)


def test_a_pause_is_told_with_its_end_also_when_the_limit_is_used_up():
    async def test(peer):
        for _ in range(3):
            await peer.acquire("api")
        await peer.post("/v1/limits/api/pause", {"seconds": 20})
        state = await look(peer)
        until = by_name(state["limits"])["api"]["paused_until"]
        assert abs(until - state["time"] - 20) < 0.5
        assert by_name(state["limits"])["calls"]["paused_until"] is None
        await peer.post("/v1/limits/api/pause", {"seconds": 0})
        assert by_name((await look(peer))["limits"])["api"]["paused_until"] is None
        # One that another program has made, and this server was not told of.
        await peer.service.limits.find("calls").limiter.pause_async(40)
        state = await look(peer)
        assert abs(by_name(state["limits"])["calls"]["paused_until"] - state["time"] - 40) < 0.5

    serve(CONFIG, test)


def test_a_waiting_request_is_told():
    async def test(peer):
        for _ in range(3):
            await peer.acquire("api")
        waiting = asyncio.ensure_future(peer.acquire("api", wait=100))
        await asyncio.sleep(1)
        assert by_name((await look(peer))["limits"])["api"]["waiting"] == 1
        await waiting
        assert by_name((await look(peer))["limits"])["api"]["waiting"] == 0

    serve(CONFIG, test)


def test_a_gate_is_told_with_what_is_pending_and_what_became_of_it():
    async def test(peer):
        async with watching(peer) as stream:
            await stream.until(lambda state: state is not None)
            for event in ("disk full", "fan stuck", "disk full"):
                await peer.post("/v1/gates/alarms/events", {"event": event})
            gate = (await stream.until(lambda state: state["gates"][0]["invalidated"]))["gates"][0]
            assert (gate["name"], gate["mode"], gate["duration"]) == ("alarms", "strict", 30)
            assert [one["event"] for one in gate["upcoming"]] == ["fan stuck"]
            assert gate["pending"] == 1
            assert gate["upcoming"][0]["due"] - gate["upcoming"][0]["submitted"] == 30
            begun = peer.now
            gate = (await stream.until(lambda state: state["gates"][0]["published"]))["gates"][0]
            assert 29 < peer.now - begun < 31
            assert (gate["pending"], gate["invalidated"], gate["clock"]) == (0, 1, 4)
            newest = [(one["status"], one["event"]) for one in gate["recent"]]
            assert newest[:2] == [("PUBLISHED", "fan stuck"), ("INVALIDATED", "disk full")]

    serve(CONFIG, test)


def test_long_texts_and_many_events_are_cut():
    async def test(peer):
        for number in range(30):
            await peer.post("/v1/gates/alarms/events", {"event": f"{number}" + "x" * 2000})
        await peer.acquire("api", key="k" * 1000)
        await peer.acquire("llm", key={"tokens": "t" * 500})
        state = await look(peer)
        gate = state["gates"][0]
        assert gate["pending"] == 30
        assert len(gate["upcoming"]) == 12
        assert all(len(one["event"]) == 80 for one in gate["upcoming"])
        assert len(by_name(state["limits"])["api"]["ledgers"][0]["key"]) == 80
        assert by_name(state["limits"])["llm"]["ledgers"][0]["key"].startswith("tokens=ttt")

    serve(CONFIG, test)


def test_of_too_many_limits_the_busiest_are_told(monkeypatch):
    monkeypatch.setattr(live_sampler, "LIMITS", 3)

    async def test(peer):
        await look(peer)
        for number in range(5):
            await peer.put(f"/v1/limits/x{number}", {"limit": "9/s"})
        await look(peer)
        for name in ("x1", "x4", "free"):
            await peer.acquire(name)
        state = await look(peer)
        assert list(by_name(state["limits"])) == ["free", "x1", "x4"]
        assert state["more_limits"] == 6

    serve(CONFIG, test)


def test_keys_that_are_told_are_bounded():
    async def test(peer):
        async with watching(peer) as stream:
            await stream.until(lambda state: state is not None)
            for number in range(20):
                await peer.acquire("free" if number % 2 else "api", key=f"k{number}")
                await asyncio.sleep(1)
            while not stream.events.empty():
                await stream.next()
            keys = [ledger["key"] for ledger in stream.limit("api")["ledgers"]]
            assert len(keys) == live_limits.KEYS
            assert "k18" in keys

    serve(CONFIG, test)


def test_watchers_share_one_sampler_and_its_bytes(monkeypatch):
    looks = []
    peek = Limiter.peek_async

    async def counted(self, key=None, *, cost=1):
        looks.append(key)
        return await peek(self, key, cost=cost)

    monkeypatch.setattr(Limiter, "peek_async", counted)

    async def test(peer):
        async with watching(peer) as one:
            await one.until(lambda state: state is not None)
            looks.clear()
            await asyncio.sleep(10)
            alone = len(looks)
            async with watching(peer) as two, watching(peer) as three:
                for stream in (two, three):
                    await stream.until(lambda state: state is not None)
                looks.clear()
                await asyncio.sleep(10)
                assert abs(len(looks) - alone) <= 6  # three limits have ledgers
                await peer.acquire("api")
                for stream in (one, two, three):
                    await stream.until(lambda state: by_name(state["limits"])["api"]["granted"] == 1)
                bodies = [stream.sent[-1]["body"] for stream in (one, two, three)]
                assert bodies[0] == bodies[1] == bodies[2]
        await asyncio.sleep(live_sampler.LINGER + 3)
        looks.clear()
        await asyncio.sleep(600)
        assert looks == []  # without a watcher no ledger is looked at

    serve(CONFIG, test)


def test_the_last_minutes_are_there_for_a_page_that_is_opened():
    async def test(peer):
        await look(peer)  # where lifespan is not run, this begins it
        await asyncio.sleep(100)
        for _ in range(5):
            await peer.acquire("free")
        await asyncio.sleep(200)
        series = by_name((await look(peer))["limits"])["free"]["granted_series"]
        assert sum(series) == 5
        assert len(series) == live_limits.BINS
        assert series[-101:-98].count(5) == 1

    serve(CONFIG, test)


def test_a_watcher_that_reads_slowly_gets_the_state_and_no_queue():
    async def main():
        watcher = Watcher()
        messages = watcher.messages(lambda: b"whole")
        assert await anext(messages) == ("state", b"whole")
        watcher.tell("change", b"1")
        assert await anext(messages) == ("change", b"1")
        for number in range(1000):
            watcher.tell("change", b"%d" % number)
        assert await anext(messages) == ("state", b"whole")
        watcher.tell("change", b"x")
        assert await anext(messages) == ("change", b"x")
        watcher.end()
        assert [message async for message in messages] == []

    asyncio.run(main())


def test_a_watcher_too_many_is_refused(monkeypatch):
    monkeypatch.setattr(live_sampler, "WATCHERS", 1)

    async def test(peer):
        async with watching(peer) as stream:
            await stream.until(lambda state: state is not None)
            reply = await peer.get("/v1/live", Accept="text/event-stream")
            assert (reply.status_code, problem(reply)) == (503, "too-many-watchers")
            assert reply.headers["retry-after"] == "5"
            await look(peer)
        async with watching(peer) as stream:
            await stream.until(lambda state: state is not None)

    serve(CONFIG, test)


def test_a_token_that_is_taken_away_ends_its_streams():
    authorization = "Bearer read-token-0123456789"

    async def test(peer):
        async with watching(peer, authorization=authorization) as stream:
            _, hello = await stream.next()
            assert (hello["role"], hello["token"]) == ("read", "eye")
            await stream.next()
            other = '[tokens.other]\ntoken = "another-token-012345"\nrole = "read"\n'
            await peer.service.reload(CONFIG + other, {})
            await asyncio.wait_for(stream.task, 100)
            assert stream.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        reply = await peer.get("/v1/live", Authorization=authorization)
        assert (reply.status_code, problem(reply)) == (401, "no-token")

    serve(CONFIG + TOKENS, test)


def test_the_end_of_the_server_ends_streams():
    async def test(peer):
        async with watching(peer) as stream:
            await stream.until(lambda state: state is not None)
            peer.service.decider.end_waits()
            begun = peer.now
            await asyncio.wait_for(stream.task, 100)
            assert peer.now - begun <= live_sampler.TICK + 0.3
        reply = await peer.get("/v1/live")
        assert (reply.status_code, problem(reply)) == (503, "closing")

    serve(CONFIG, test)
