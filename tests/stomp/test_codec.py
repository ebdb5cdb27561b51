# mypy: disable-error-code="union-attr"
"""Frames to bytes and back: the examples of the specification, escapes, bounds, and any frame in any pieces."""

import string
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import HeadwayError, InvalidArgument
from headway.stomp import HEART_BEAT, VERSIONS, Frame, Parser, StompError, encode


def parse(data, version="1.2", **bounds):
    return fed(Parser(version, **bounds), data)


def fed(parser, data):
    parser.feed(data)
    return drained(parser)


def drained(parser):
    found = []
    while (item := parser.next()) is not None:
        found.append(item)
    return found


def frames(data, version="1.2"):
    return [item for item in parse(data, version) if item is not HEART_BEAT]


# The examples of the STOMP 1.2 specification: ^@ is a NUL.
EXAMPLES = [
    (
        "SEND\ndestination:/queue/a\ncontent-type:text/plain\n\nhello queue a\n^@",
        Frame("SEND", {"destination": "/queue/a", "content-type": "text/plain"}, b"hello queue a\n"),
    ),
    (
        "MESSAGE\nfoo:World\nfoo:Hello\n\n^@",  # repeated headers: the first counts
        Frame("MESSAGE", {"foo": "World"}),
    ),
    (
        "CONNECT\naccept-version:1.2\nhost:stomp.github.org\n\n^@",
        Frame("CONNECT", {"accept-version": "1.2", "host": "stomp.github.org"}),
    ),
    ("CONNECTED\nversion:1.2\n\n^@", Frame("CONNECTED", {"version": "1.2"})),
    (
        "CONNECT\naccept-version:1.0,1.1,2.0\nhost:stomp.github.org\n\n^@",
        Frame("CONNECT", {"accept-version": "1.0,1.1,2.0", "host": "stomp.github.org"}),
    ),
    (
        "ERROR\nversion:1.2,2.1\ncontent-type:text/plain\n\nSupported protocol versions are 1.2 2.1^@",
        Frame(
            "ERROR",
            {"version": "1.2,2.1", "content-type": "text/plain"},
            b"Supported protocol versions are 1.2 2.1",
        ),
    ),
    (
        "CONNECT\nheart-beat:500,1000\n\n^@",
        Frame("CONNECT", {"heart-beat": "500,1000"}),
    ),
    (
        "SUBSCRIBE\nid:0\ndestination:/queue/foo\nack:client\n\n^@",
        Frame("SUBSCRIBE", {"id": "0", "destination": "/queue/foo", "ack": "client"}),
    ),
    ("UNSUBSCRIBE\nid:0\n\n^@", Frame("UNSUBSCRIBE", {"id": "0"})),
    ("ACK\nid:12345\ntransaction:tx1\n\n^@", Frame("ACK", {"id": "12345", "transaction": "tx1"})),
    ("BEGIN\ntransaction:tx1\n\n^@", Frame("BEGIN", {"transaction": "tx1"})),
    ("DISCONNECT\nreceipt:77\n\n^@", Frame("DISCONNECT", {"receipt": "77"})),
    ("RECEIPT\nreceipt-id:77\n\n^@", Frame("RECEIPT", {"receipt-id": "77"})),
    (
        "MESSAGE\nsubscription:0\nmessage-id:007\ndestination:/queue/a\ncontent-type:text/plain\n\nhello queue a^@",
        Frame(
            "MESSAGE",
            {
                "subscription": "0",
                "message-id": "007",
                "destination": "/queue/a",
                "content-type": "text/plain",
            },
            b"hello queue a",
        ),
    ),
    (
        (
            "ERROR\nreceipt-id:message-12345\ncontent-type:text/plain\ncontent-length:170\n"
            "message:malformed frame received\n"
            "\nThe message:\n-----\nMESSAGE\ndestined:/queue/a\nreceipt:message-12345\n\nHello queue a!\n-----\n"
            "Did not contain a destination header, which is REQUIRED\nfor message propagation.\n^@"
        ),
        Frame(
            "ERROR",
            {
                "receipt-id": "message-12345",
                "content-type": "text/plain",
                "content-length": "170",
                "message": "malformed frame received",
            },
            b"The message:\n-----\nMESSAGE\ndestined:/queue/a\nreceipt:message-12345\n\nHello queue a!\n-----\n"
            b"Did not contain a destination header, which is REQUIRED\nfor message propagation.\n",
        ),
    ),
]


@pytest.mark.parametrize(("text", "frame"), EXAMPLES, ids=[text.split("\n\n")[0] for text, _ in EXAMPLES])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_examples_of_the_specification(text, frame, line_end):
    # Line ends of the body belong to the body.
    head, _, body = text.partition("\n\n")
    data = ((head + "\n\n").replace("\n", line_end) + body).replace("^@", "\0").encode()
    assert parse(data) == [frame]
    # Whole WebSocket messages, text and binary, are pieces like any other.
    assert parse(data.decode()) == [frame]


@pytest.mark.parametrize(
    ("version", "wire", "value"),
    [
        ("1.0", rb"a\nb\c\\\t", r"a\nb\c\\\t"),
        ("1.0", rb"  a:b ", "a:b"),
        ("1.1", rb" a\nb\c\\n ", " a\nb:\\n "),
        ("1.1", b"a\rb\r", "a\rb\r"),
        ("1.2", rb" a\nb\c\\n\r", " a\nb:\\n\r"),
        ("1.2", rb"\\\\n", r"\\n"),
        ("1.2", rb"http://a:1", "http://a:1"),
        ("1.2", "é€😀".encode(), "é€😀"),
        ("1.2", b"", ""),
    ],
)
def test_values_are_read_by_the_rules_of_their_version(version, wire, value):
    assert parse(b"SEND\nk:" + wire + b"\n\n\0", version) == [Frame("SEND", {"k": value})]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("command", ["CONNECT", "CONNECTED"])
def test_what_is_said_before_a_version_is_agreed_upon_has_no_escapes(command, version):
    frame = Frame(command, {"passcode": r"a\nb:\x"})
    assert encode(frame, version) == command.encode() + b"\n" + rb"passcode:a\nb:\x" + b"\n\n\0"
    assert parse(encode(frame, version), version) == [frame]


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_the_frame_called_stomp_is_escaped(version):
    assert parse(rb"STOMP" b"\n" rb"login:a\cb" b"\n\n\0", version) == [Frame("STOMP", {"login": "a:b"})]


def test_the_version_may_change_between_frames():
    parser = Parser()
    parser.feed(b"CONNECT\r\naccept-version:1.0\r\n\r\n\0" rb"SEND" b"\n" rb"destination: a\c" b"\n\n\0")
    assert parser.next().command == "CONNECT"
    parser.version = "1.0"
    assert parser.version == "1.0"
    assert parser.next() == Frame("SEND", {"destination": r"a\c"})


def test_a_run_of_line_ends_is_one_heart_beat():
    assert parse(b"\n" * 1000) == [HEART_BEAT]
    assert parse(b"\n\r\n\nSEND\n\n\0\r\n") == [HEART_BEAT, Frame("SEND"), HEART_BEAT]
    parser = Parser()
    parser.feed(b"\r")
    assert parser.next() is None
    parser.feed(b"\n")
    assert parser.next() is HEART_BEAT
    assert parser.next() is None


def test_a_body_with_a_nul_needs_its_length():
    frame = Frame("SEND", {"destination": "/a"}, b"a\0b\n\0")
    (found,) = parse(encode(frame))
    assert found.body == frame.body
    assert found.headers["content-length"] == "5"
    # An empty one has none, and a wrong one is put right.
    assert encode(Frame("SEND", {"content-length": "7"})) == b"SEND\n\n\0"
    assert parse(b"SEND\ncontent-length:2\ncontent-length:3\n\nab\0")[0].body == b"ab"


# -- what is refused


@pytest.mark.parametrize(
    ("data", "version", "message"),
    [
        (b"GET / HTTP/1.1\r\n", "1.2", "no STOMP command: b'GET / HTTP/1.1'"),
        (b"\x16\x03\x01", "1.2", "no STOMP command"),
        (b"send\n", "1.2", "no STOMP command"),
        (b"\0", "1.2", "no STOMP command"),
        (b"\rSEND", "1.2", "no STOMP command"),
        (b"A" * 33, "1.2", "no STOMP command"),
        (b"A" * 33 + b"\n", "1.2", "no STOMP command"),
        (b"SEND\r\n", "1.1", "lines of STOMP 1.1 end with LF alone"),
        (b"SEND\nno colon\n", "1.2", "no header (name:value) of SEND: b'no colon'"),
        (b"SEND\n:value\n", "1.2", "no header"),
        (b"SEND\n :value\n", "1.0", "no header"),
        (b"SEND\n\r\n", "1.1", "no header"),
        (b"SEND\na:b\0c\n", "1.2", "NUL"),
        (b"SEND\na:b\rc\n", "1.2", "lone CR"),
        (b"SEND\na:\xff\n", "1.2", "not UTF-8"),
        (b"SEND\na:\\t\n", "1.2", r"STOMP 1.2 has no escape '\\t'"),
        (b"SEND\na:\\r\n", "1.1", r"STOMP 1.1 has no escape '\\r'"),
        (b"SEND\na\\x:b\n", "1.1", "has no escape"),
        (b"SEND\na:b\\\n", "1.2", "has no escape"),
        (b"SEND\ncontent-length:-1\n\n", "1.2", "content-length is no number"),
        (b"SEND\ncontent-length:1_0\n\n", "1.2", "content-length is no number"),
        ("SEND\ncontent-length:٣\n\n".encode(), "1.2", "content-length is no number"),
        (b"SEND\ncontent-length:\n\n", "1.2", "content-length is no number"),
        (b"SEND\ncontent-length:1048577\n\n", "1.2", "content-length '1048577' is above 1048576"),
        (b"SEND\ncontent-length:" + b"9" * 5000 + b"\n\n", "1.2", "is above 1048576"),
        (b"SEND\ncontent-length:1\n\nab\0", "1.2", "longer than its content-length 1"),
        ("SEND\na:\ud800\n", "1.2", "lone surrogate"),
    ],
)
def test_garbage_is_one_clear_error(data, version, message):
    parser = Parser(version)
    with pytest.raises(StompError) as raised:
        fed(parser, data)
    assert message in str(raised.value)
    assert isinstance(raised.value, HeadwayError)
    # It keeps nothing, and says the same again.
    parser.feed(b"SEND\n\n\0")
    assert parser.buffered == 0
    with pytest.raises(StompError) as again:
        parser.next()
    assert again.value is raised.value


def test_header_floods_are_refused():
    assert len(parse(b"SEND\n" + b"".join(b"h%d:v\n" % n for n in range(64)) + b"\n\0")[0].headers) == 64
    with pytest.raises(StompError, match="more than 64 headers"):
        parse(b"SEND\n" + b"same:v\n" * 65)  # equal names count too
    with pytest.raises(StompError, match="more than 100 bytes"):
        parse(b"SEND\n" + b"h:v\n" * 24, max_header_bytes=100)
    with pytest.raises(StompError, match="more than 100 bytes"):
        parse(b"SEND\n" + b"h" * 96, max_header_bytes=100)  # without a line end too
    assert parse(b"SEND\n" + b"h" * 95, max_header_bytes=100) == []


def test_a_body_above_the_bound_is_refused_before_it_is_kept():
    parser = Parser(max_body=10)
    parser.feed(b"SEND\n\n" + b"x" * 10)
    assert parser.next() is None
    parser.feed(b"x")
    with pytest.raises(StompError, match="the body of SEND has more than 10 bytes"):
        parser.next()
    assert parse(b"SEND\n\n" + b"x" * 10 + b"\0", max_body=10)[0].body == b"x" * 10
    with pytest.raises(StompError, match="more than 10 bytes"):
        parse(b"SEND\n\n" + b"x" * 11 + b"\0", max_body=10)
    with pytest.raises(StompError, match="'1000000000' is above 10"):
        parse(b"SEND\ncontent-length:1000000000\n\n", max_body=10)


def test_a_gigabyte_costs_no_memory():
    parser = Parser(max_body=2**40)  # even where it is allowed: memory is taken for what came
    tracemalloc.start()
    try:
        parser.feed(b"SEND\ncontent-length:1000000000\n\nabc")
        assert parser.next() is None
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert parser.buffered == 3


@pytest.mark.parametrize(
    ("frame", "version"),
    [
        (Frame("SEND", {"a": "1\n2"}), "1.0"),
        (Frame("SEND", {"a:b": "1"}), "1.0"),
        (Frame("CONNECTED", {"a": "1\n2"}), "1.2"),
        (Frame("CONNECTED", {"a": "1\r"}), "1.2"),
        (Frame("CONNECT", {"a:b": "1"}), "1.1"),
        (Frame("SEND", {"a": "\0"}), "1.2"),
        (Frame("SEND", {"": "1"}), "1.2"),
        (Frame("SEND", {"a": "\ud800"}), "1.2"),
        (Frame("send"), "1.2"),
        (Frame("SEND\n"), "1.2"),
        (Frame(""), "1.2"),
        (Frame("S" * 33), "1.2"),
    ],
)
def test_what_a_version_cannot_say_is_not_sent(frame, version):
    with pytest.raises(StompError):
        encode(frame, version)


def test_an_unknown_version_is_a_mistake():
    for make in (lambda: Parser("1.3"), lambda: encode(Frame("SEND"), "2")):
        with pytest.raises(InvalidArgument, match=r"'1\.0', '1\.1' or '1\.2'"):
            make()


# -- any frame, in any pieces

COMMANDS = st.text(string.ascii_uppercase, min_size=1, max_size=32)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
TRICKY = st.text("\\:nrc\n\r a", max_size=8)


def sayable(version, command):
    """Names and values that this version can say."""
    text = TEXT | TRICKY
    escaped = command not in ("CONNECT", "CONNECTED")
    if version == "1.0":
        value = text.filter(lambda t: "\n" not in t).map(str.strip)
    elif not escaped:
        value = text.filter(lambda t: not set(t) & ({"\n", "\r"} if version == "1.2" else {"\n"}))
    else:
        value = text
    name = value if escaped and version != "1.0" else value.map(lambda t: t.replace(":", "").strip())
    return name.filter(lambda t: t and t != "content-length"), value


@st.composite
def any_frame(draw, version):
    command = draw(st.sampled_from(["SEND", "CONNECT", "CONNECTED", "MESSAGE"]) | COMMANDS)
    names, values = sayable(version, command)
    return Frame(command, draw(st.dictionaries(names, values, max_size=5)), draw(st.binary(max_size=40)))


def without_length(frame):
    return frame._replace(headers={n: v for n, v in frame.headers.items() if n != "content-length"})


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=80)
@given(data=st.data())
def test_any_frame_comes_back(version, data):
    sent = data.draw(st.lists(any_frame(version), max_size=4))
    stream = b"".join(encode(frame, version) + b"\n" * data.draw(st.integers(0, 2)) for frame in sent)
    assert [without_length(frame) for frame in frames(stream, version)] == sent
    # In pieces of any sizes.
    parser, found, rest = Parser(version), [], stream
    while rest:
        size = data.draw(st.integers(1, 30))
        found += fed(parser, rest[:size])
        rest = rest[size:]
    assert [without_length(item) for item in found if item is not HEART_BEAT] == sent
    assert parser.buffered == 0


def test_a_stream_may_be_cut_at_every_byte():
    stream = b"".join(
        text.replace("^@", "\0").replace("\n\n", "\r\n\n", 1).encode() + b"\r\n" for text, _ in EXAMPLES[-3:]
    )
    whole = frames(stream)
    assert whole == [frame for _, frame in EXAMPLES[-3:]]
    for cut in range(len(stream) + 1):
        parser = Parser()
        found = fed(parser, stream[:cut]) + fed(parser, stream[cut:])
        assert [item for item in found if item is not HEART_BEAT] == whole
    parser, found = Parser(), []
    for byte in stream:
        found += fed(parser, bytes([byte]))
    assert [item for item in found if item is not HEART_BEAT] == whole
