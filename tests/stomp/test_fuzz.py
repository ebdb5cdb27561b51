"""Whatever a peer sends: frames, an ERROR or the end; never an exception, and never more memory than the bounds."""

import itertools
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.stomp.fuzz_codec import PIECES, STREAM, check, conversation, one_input

from headway.stomp import Closed, Session, encode


@st.composite
def mutated(draw):
    """A conversation in one of the versions, with parts cut out, doubled, replaced."""
    frames = conversation(draw(st.sampled_from(["1.0", "1.1", "1.2", "1.0,1.2", "2.0"])))
    stream = bytearray(b"\n".join(map(encode, frames)))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(stream)))
        end = start + draw(st.integers(0, 8))
        other = st.binary(max_size=4) | st.sampled_from(PIECES) | st.just(bytes(stream[start:end]) * 2)
        stream[start:end] = draw(other)
    return bytes(stream)


ANYTHING = st.binary(max_size=600) | st.lists(st.sampled_from(PIECES), max_size=10).map(b"".join) | mutated()


@settings(max_examples=400)
@given(
    stream=ANYTHING,
    sizes=st.lists(st.integers(1, 40), max_size=20),
    refused=st.sets(st.integers(1, 5), max_size=2),
)
@example(stream=STREAM, sizes=[1] * len(STREAM), refused=set())
def test_a_session_answers_anything(stream, sizes, refused):
    check(stream, sizes, refused)


@settings(max_examples=200)
@given(data=st.binary(max_size=200))
def test_an_input_of_the_fuzzer_is_one(data):
    """So that the command works where its fuzzer is installed."""
    one_input(data)


@settings(max_examples=100)
@given(text=st.text(st.characters(), max_size=100))
def test_a_text_message_is_like_any_other(text):
    session = Session(0)
    for event in session.receive(text, 0):
        assert isinstance(event, Closed)
    assert session.buffered <= 400


CONNECT = encode(conversation()[0])
SUBSCRIBE = "SUBSCRIBE\nid:{}\ndestination:/topic/gates/a\n\n\0"
FLOODS = {
    "a gigabyte that is announced": (b"SEND\ndestination:/a\ncontent-length:1000000000\n\n", b"x" * 65536),
    "a body without an end": (b"SEND\ndestination:/a\n\n", b"x" * 65536),
    "a header without an end": (b"SEND\nname:", b"x" * 65536),
    "headers without an end": (b"SEND\n", b"name:value\n" * 6000),
    "equal headers": (b"SEND\n", b"a:\n" * 20000),
    "escapes": (b"SEND\nname:", b"\\\\\\c" * 16000),
    "heart-beats": (b"", b"\n" * 65536),
    "garbage": (b"", b"\xff\0:" * 20000),
    "frames": (b"", b"SEND\ndestination:/app/gates/a\n\nevent\0" * 1500),
    "receipts": (b"", b"SEND\ndestination:/app/gates/a\nreceipt:1\n\nevent\0" * 1500),
    "subscriptions": (b"", "".join(map(SUBSCRIBE.format, range(1500))).encode()),
}


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "before CONNECT"])
def test_a_flood_costs_no_memory(flood, connected):
    """Megabytes, of which a session keeps no more than one frame and what one piece asks for."""
    begin, more = FLOODS[flood]
    session, now, closed = Session(0), itertools.count(0, 1_000_000), 0

    def receive(data):
        nonlocal closed
        at = next(now)
        for event in session.receive(data, at):
            closed += isinstance(event, Closed)
            session.done(event)
        session.take(at)
        assert session.buffered <= 16 * 1024 + 1024 * 1024 + len(data)

    if connected:
        receive(CONNECT)
    receive(begin)
    receive(more)
    tracemalloc.start()
    for _ in range(64 if begin else 6):
        receive(more)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * 1024 * 1024
    assert closed <= 1
    harmless = flood == "heart-beats" or (connected and flood in ("frames", "receipts"))
    assert session.closed != harmless
