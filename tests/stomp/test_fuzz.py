# mypy: disable-error-code="arg-type"
"""Whatever a peer sends: frames, an ERROR or the end; never an exception, and never more memory than the bounds."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.stomp import Closed, Frame, Parser, Session, encode

BOUNDS = {"max_headers": 8, "max_header_bytes": 200, "max_body": 300}

CONVERSATION = [
    Frame("CONNECT", {"accept-version": "1.1,1.2", "heart-beat": "10,10", "host": "a"}),
    Frame("SUBSCRIBE", {"id": "a:\\\n", "destination": "/topic/gates/a", "receipt": "1"}),
    Frame("SEND", {"destination": "/app/gates/a", "receipt": "2"}, b"piz\0za"),
    Frame("UNSUBSCRIBE", {"id": "a:\\\n"}),
    Frame("DISCONNECT", {"receipt": "3"}),
]
STREAM = b"\n".join(map(encode, CONVERSATION))

PIECES = st.sampled_from(
    [
        b"\n",
        b"\r\n",
        b"\0",
        b":",
        b"\\",
        b"\\t",
        b"\xff",
        b"CONNECT\n\n\0",
        b"SEND\n",
        b"ACK\nid:1\n\n\0",
        b"x" * 400,
    ]
    + [
        b"content-length:1000000000\n",
        b"content-length:3\n",
        b"h:v\n" * 9,
        b"heart-beat:1,1\n",
        b"receipt:\\r\n",
    ]
    + [encode(frame) for frame in CONVERSATION]
)


@st.composite
def mutated(draw):
    """The stream with parts cut out, doubled, replaced."""
    stream = bytearray(STREAM)
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(stream)))
        end = start + draw(st.integers(0, 8))
        stream[start:end] = draw(st.binary(max_size=4) | PIECES | st.just(bytes(stream[start:end]) * 2))
    return bytes(stream)


ANYTHING = st.binary(max_size=600) | st.lists(PIECES, max_size=10).map(b"".join) | mutated()


def served(stream, sizes):
    """A session that is fed these bytes in pieces, by a program that does all that it is asked for."""
    session, events, sent, now = Session(0, heart_beat=(10, 10), max_subscriptions=3, **BOUNDS), [], [], 0
    while stream:
        size = next(sizes, len(stream))
        now += size * 1_000_000
        found = session.receive(stream[:size], now)
        stream = stream[size:]
        assert session.buffered <= max(BOUNDS["max_header_bytes"], BOUNDS["max_body"])
        assert len(session.subscriptions) <= 3
        for event in found:
            session.done(event)
        for id in session.subscriptions:
            session.message(id, b"body", {"clock": "1"})
        events += found + session.tick(now)
        sent += session.take(now)
    return session, events, sent


@settings(max_examples=400, deadline=None)
@given(stream=ANYTHING, sizes=st.lists(st.integers(1, 40), max_size=20))
@example(stream=STREAM, sizes=[1] * len(STREAM))
def test_a_session_answers_anything(stream, sizes):
    session, events, sent = served(stream, iter(sizes))
    # Whatever it said is STOMP of the version that was agreed upon.
    parser = Parser("1.2")
    commands = []
    for item in sent:
        parser.feed(item)
        while (found := parser.next()) is not None:
            if isinstance(found, Frame):
                commands.append(found.command)
                parser.version = (
                    found.headers.get("version", parser.version)
                    if found.command == "CONNECTED"
                    else parser.version
                )
    assert parser.buffered == 0
    assert set(commands) <= {"CONNECTED", "RECEIPT", "MESSAGE", "ERROR"}
    # One end at most, and nothing after it.
    ends = [event for event in events if isinstance(event, Closed)]
    assert len(ends) == commands.count("ERROR") <= 1
    if ends:
        assert session.closed
        assert commands[-1] == "ERROR"
        assert events[-1] is ends[0]
    # It is the same however the stream was cut, but for what time does, and how much of garbage the reason shows.
    whole = Session(0, max_subscriptions=3, **BOUNDS)
    cut = Session(0, max_subscriptions=3, **BOUNDS)
    at_once = whole.receive(stream, 0)
    in_bytes = [event for byte in stream for event in cut.receive(bytes([byte]), 0)]
    assert list(map(unreasoned, at_once)) == list(map(unreasoned, in_bytes))


def unreasoned(event):
    return Closed("") if isinstance(event, Closed) else event


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(), max_size=100))
def test_a_text_message_is_like_any_other(text):
    session = Session(0)
    for event in session.receive(text, 0):
        assert isinstance(event, Closed)
    assert session.buffered <= 400
