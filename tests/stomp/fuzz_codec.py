# mypy: disable-error-code="arg-type, var-annotated, import-untyped, unused-ignore"
"""What must hold for any bytes that a peer sends, and a fuzzer that looks for bytes for which it does not.

`check` is the property; `test_fuzz.py` gives it what hypothesis draws. By command atheris looks, guided by the lines of
the codec and the session that it reaches. It is no part of the test extra, since it has wheels for few Pythons:

    pip install atheris
    PYTHONPATH=src python -m tests.stomp.fuzz_codec -max_total_time=120

The first bytes of an input say how it is cut, which version the peer wants and which of its frames are refused.
"""

from __future__ import annotations

import inspect
import sys
from itertools import cycle

from headway.stomp import Closed, Frame, Parser, Session, encode

BOUNDS = {"max_headers": 8, "max_header_bytes": 200, "max_body": 300}
MOST_SUBSCRIPTIONS = 3
MOST_SAID = 2000
"""Bytes of any one frame that a session says: a peer's own words come back in it, but not all of them."""


def conversation(version="1.1,1.2"):
    return [
        Frame("CONNECT", {"accept-version": version, "heart-beat": "10,10", "host": "a"}),
        Frame("SUBSCRIBE", {"id": "a:\\", "destination": "/topic/gates/a", "receipt": "1"}),
        Frame("SEND", {"destination": "/app/gates/a", "receipt": "2"}, b"piz\0za"),
        Frame("UNSUBSCRIBE", {"id": "a:\\"}),
        Frame("DISCONNECT", {"receipt": "3"}),
    ]


STREAM = b"\n".join(map(encode, conversation()))
PIECES = [
    b"\n", b"\r\n", b"\0", b":", b"\\", b"\\t", b"\xff", b"CONNECT\n\n\0", b"SEND\n", b"ACK\nid:1\n\n\0",
    b"content-length:1000000000\n", b"content-length:3\n", b"h:v\n" * 9, b"heart-beat:1,1\n", b"receipt:\\r\n",
    b"x" * 400, b"content-length:" + b"9" * 30 + b"\n",
    *(encode(frame) for version in ("1.0", "1.1", "1.2") for frame in conversation(version)),
]  # fmt: skip


def served(stream, sizes, refused=()):
    """A session that is fed these bytes in pieces, by a program that does or refuses what it is asked for."""
    session = Session(0, heart_beat=(10, 10), max_subscriptions=MOST_SUBSCRIPTIONS, **BOUNDS)
    events, sent, now, number = [], [], 0, 0
    while stream:
        size = next(sizes, len(stream))
        now += size * 1_000_000
        found = session.receive(stream[:size], now)
        stream = stream[size:]
        assert session.buffered <= max(BOUNDS["max_header_bytes"], BOUNDS["max_body"])
        assert len(session.subscriptions) <= MOST_SUBSCRIPTIONS
        for event in found:
            number += 1
            if number in refused and not session.closed:
                session.refuse(event, f"{event} is refused")
                break
            session.done(event)
        for id in session.subscriptions:
            session.message(id, b"body", {"clock": "1"})
        events += found + session.tick(now)
        sent += session.take(now)
    return session, events, sent


def check(stream, sizes=(), refused=()):
    """Frames, an ERROR or the end; never an exception, and never more memory than the bounds."""
    session, events, sent = served(stream, iter(sizes), refused)
    # Whatever it said is STOMP of the version that was agreed upon.
    parser, commands = Parser("1.2"), []
    for item in sent:
        assert len(item) <= MOST_SAID
        parser.feed(item)
        while (found := parser.next()) is not None:
            if isinstance(found, Frame):
                commands.append(found.command)
                if found.command == "CONNECTED":
                    parser.version = found.headers.get("version", parser.version)
    assert parser.buffered == 0
    assert set(commands) <= {"CONNECTED", "RECEIPT", "MESSAGE", "ERROR"}
    # One end at most, and nothing after it.
    ends = [event for event in events if isinstance(event, Closed)]
    assert len(ends) <= commands.count("ERROR") <= 1
    if "ERROR" in commands:
        assert session.closed
        assert commands[-1] == "ERROR"
    if ends:
        assert session.closed
        assert events[-1] is ends[0]
    # It is the same however the stream was cut, but for what time does, and how much of garbage the reason shows.
    whole, cut = (Session(0, max_subscriptions=MOST_SUBSCRIPTIONS, **BOUNDS) for _ in range(2))
    at_once = whole.receive(stream, 0)
    in_bytes = [event for byte in stream for event in cut.receive(bytes([byte]), 0)]
    assert list(map(_unreasoned, at_once)) == list(map(_unreasoned, in_bytes))
    # A text message is like any other.
    told = Session(0, **BOUNDS)
    told.receive(stream.decode("utf-8", "replace"), 0)
    assert told.buffered <= max(BOUNDS["max_header_bytes"], BOUNDS["max_body"])


def _unreasoned(event):
    return Closed("") if isinstance(event, Closed) else event


def one_input(data: bytes) -> None:
    """An input of the fuzzer."""
    if len(data) < 4:
        check(data)
        return
    version, refused, *sizes = data[:4]
    connect = b"" if version > 200 else encode(conversation(("1.0", "1.1", "1.2", "1.0,1.2")[version % 4])[0])
    check(
        connect + data[4:],
        (1 + size % 40 for _, size in zip(range(50), cycle(sizes), strict=False)),
        {refused % 8},
    )


def main() -> None:
    import atheris

    from headway.stomp import codec, heart_beats, session

    for module in (codec, session, heart_beats):
        own = [
            thing for thing in vars(module).values() if getattr(thing, "__module__", "") == module.__name__
        ]
        for thing in own:
            for function in (thing, *getattr(thing, "__dict__", {}).values()):
                if inspect.isfunction(function):
                    atheris.instrument_func(function)
    # The pieces are a dictionary for it: without one it would take hours to write its first header.
    inputs = [bytes((version, 255, 7, 39)) + STREAM[at:] for version in (0, 1, 2, 255) for at in (0, 60)]
    inputs += [bytes((2, 7, 3, 9)) + piece for piece in PIECES]
    for data in inputs:
        one_input(data)
    found = iter(inputs)

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        """Sometimes a known piece is put in; mostly the fuzzer's own ways are best."""
        fresh = next(found, None)
        if fresh is not None:
            return fresh[:most]
        if seed % 5 == 0:
            at, piece = seed // 5 % (len(data) + 1), PIECES[seed // 7 % len(PIECES)]
            return (data[:at] + piece + data[at:])[:most]
        return atheris.Mutate(data, most)  # type: ignore[no-any-return]

    atheris.Setup([sys.argv[0], "-max_len=1200", *sys.argv[1:]], one_input, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
