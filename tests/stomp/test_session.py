# mypy: disable-error-code="union-attr"
"""A server's side of a connection: what a peer may say when, what it is told, and when it is taken for lost."""

import pytest

from headway import InvalidArgument
from headway.stomp import (
    HEART_BEAT,
    Closed,
    Connect,
    Disconnect,
    Frame,
    Parser,
    Send,
    Session,
    Subscribe,
    Unsubscribe,
    encode,
    rest_of_message,
)
from headway.stomp.heart_beats import LONGEST, MS
from headway.stomp.session import NOT_SERVED, TRANSITIONS, State


def told(session, now=0):
    """The frames that the session hands out, one for each item."""
    found = []
    for item in session.take(now):
        parser = Parser(session.version or "1.0")
        parser.feed(item)
        found.append(parser.next())
        assert parser.buffered == 0
    return found


def said(session, command, headers=None, body=b"", now=0):
    return session.receive(encode(Frame(command, headers or {}, body), session.version or "1.2"), now)


def connected(version="1.2", now=0, beats=None, **options):
    session = Session(now, **options)
    headers = {"accept-version": version, "host": "a"} | ({} if beats is None else {"heart-beat": beats})
    (connect,) = said(session, "CONNECT", headers, now=now)
    session.done(connect)
    assert told(session, now)[0].command == "CONNECTED"
    return session


def error_of(session, events):
    """The one ERROR that closed it."""
    assert session.closed
    assert isinstance(events[-1], Closed)
    (error,) = told(session)
    assert error.command == "ERROR"
    assert error.body.decode() == events[-1].reason == session.reason
    assert error.headers["message"]
    return error


# -- connecting


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        (None, "1.0"),
        ("1.0", "1.0"),
        ("1.1", "1.1"),
        ("1.2", "1.2"),
        ("1.0,1.1,2.0", "1.1"),
        ("1.2,1.1,1.0", "1.2"),
        (" 1.1 , 1.0 ", "1.1"),
    ],
)
@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
def test_the_greatest_common_version_is_agreed_upon(command, asked, agreed):
    session = Session(0, session="s1", server="headway/1")
    (connect,) = said(
        session, command, {"login": "me"} | ({} if asked is None else {"accept-version": asked})
    )
    assert isinstance(connect, Connect)
    assert (connect.version, connect.host, connect.headers["login"]) == (agreed, None, "me")
    assert session.take(0) == [], "the program decides"
    session.done(connect)
    beats = {} if agreed == "1.0" else {"heart-beat": "10000,10000"}
    about = {"server": "headway/1", "session": "s1"}
    assert told(session) == [Frame("CONNECTED", {"version": agreed} | beats | about)]
    assert (session.version, session.state, session.closed) == (agreed, State.CONNECTED, False)


def test_no_common_version_is_an_error_that_names_those_there_are():
    session = Session(0)
    error = error_of(session, said(session, "CONNECT", {"accept-version": "2.0,3.1"}))
    assert error.headers["version"] == "1.0,1.1,1.2"
    assert b"this server has 1.0 1.1 1.2" in error.body


def test_an_error_before_a_version_is_read_the_same_in_all_versions():
    session = Session(0)
    session.receive(b"SEND\na:\\x\n\n\0", 0)
    (data,) = session.take(0)
    found = []
    for version in ("1.0", "1.1", "1.2"):
        parser = Parser(version)
        parser.feed(data)
        found.append(parser.next())
    assert found[0] == found[1] == found[2]
    assert found[0].command == "ERROR"


def test_a_host_that_is_not_served_is_refused():
    session = Session(0, hosts={"a.example", "b.example"})
    assert "unknown host" in said(session, "CONNECT", {"accept-version": "1.2", "host": "c"})[0].reason
    for headers in ({"host": "b.example"}, {}):  # a usual client for browsers does not say it
        session = Session(0, hosts={"a.example", "b.example"})
        assert isinstance(said(session, "CONNECT", headers)[0], Connect)


def test_a_program_may_refuse_a_peer():
    session = Session(0)
    (connect,) = said(session, "CONNECT", {"accept-version": "1.2", "passcode": "wrong"})
    session.refuse(connect, "unknown login")
    assert session.closed
    assert [frame.headers["message"] for frame in told(session)] == ["unknown login"]
    session.done(connect)
    session.refuse(connect, "again")
    session.close("again")
    assert session.take(0) == []


def test_frames_may_follow_a_connect_in_one_piece_and_are_read_in_its_version():
    session = Session(0)
    events = session.receive(
        b"CONNECT\naccept-version:1.1\n\n\0SUBSCRIBE\nid:a\\cb\ndestination:/x\n\n\0SEND\ndestination:/y\n\nhi\0",
        0,
    )
    assert [type(event) for event in events] == [Connect, Subscribe, Send]
    assert events[1].id == "a:b"
    assert session.subscriptions == {"a:b": "/x"}


# -- frames


def test_a_whole_conversation():
    session = connected()
    (subscribe,) = said(session, "SUBSCRIBE", {"id": "0", "destination": "/topic/gates/a", "since": "7"})
    assert subscribe == Subscribe("0", "/topic/gates/a", subscribe.headers, None)
    assert subscribe.headers["since"] == "7"
    session.done(subscribe)
    assert session.message("0", b"{}", {"clock": "8", "destination": "mine"}, message_id="8")
    assert session.message("0", b"a\0b")
    own = {"subscription": "0", "destination": "/topic/gates/a"}
    assert told(session) == [
        Frame("MESSAGE", own | {"message-id": "8", "clock": "8", "content-length": "2"}, b"{}"),
        Frame("MESSAGE", own | {"message-id": "2", "content-length": "3"}, b"a\0b"),
    ]
    (send,) = said(session, "SEND", {"destination": "/app/gates/a", "receipt": "r:1"}, b"pizza")
    assert send == Send("/app/gates/a", b"pizza", send.headers, "r:1")
    assert session.take(0) == [], "a receipt says that the frame was processed"
    session.done(send)
    assert told(session) == [Frame("RECEIPT", {"receipt-id": "r:1"})]
    (unsubscribe,) = said(session, "UNSUBSCRIBE", {"id": "0", "receipt": "2"})
    assert unsubscribe == Unsubscribe("0", "/topic/gates/a", unsubscribe.headers, "2")
    assert not session.message("0", b"late")
    session.done(unsubscribe)
    (disconnect,) = said(session, "DISCONNECT", {"receipt": "77"})
    assert disconnect == Disconnect({"receipt": "77"}, "77")
    assert not session.closed
    assert said(session, "SEND", {"destination": "/x"}) == [], "what follows a DISCONNECT is not read"
    session.done(disconnect)
    assert [frame.headers for frame in told(session)] == [{"receipt-id": "2"}, {"receipt-id": "77"}]
    assert session.closed
    assert session.reason == "the peer has disconnected"


def test_what_comes_behind_a_disconnect_is_not_kept():
    session = connected()
    (disconnect,) = session.receive(encode(Frame("DISCONNECT", {"receipt": "77"})) + b"x" * 10**6, 0)
    assert session.buffered == 0
    session.done(disconnect)
    assert [frame.command for frame in told(session)] == ["RECEIPT"]
    assert session.closed


def test_a_refused_frame_is_an_error_with_its_receipt():
    session = connected()
    (subscribe,) = said(session, "SUBSCRIBE", {"id": "0", "destination": "/nowhere", "receipt": "5"})
    session.refuse(subscribe, "no such gate")
    assert session.closed
    assert not session.message("0", b"")
    (error,) = told(session)
    assert (error.command, error.headers["receipt-id"], error.body) == ("ERROR", "5", b"no such gate")


def test_in_the_first_version_a_subscription_goes_by_its_destination():
    session = connected("1.0")
    said(session, "SUBSCRIBE", {"destination": "/x"})
    said(session, "SUBSCRIBE", {"destination": "/y", "id": "1"})
    assert session.subscriptions == {"/x": "/x", "1": "/y"}
    assert session.message("/x", b"")
    assert session.message("1", b"")
    assert [frame.headers.get("subscription") for frame in told(session)] == [None, "1"]
    assert isinstance(said(session, "UNSUBSCRIBE", {"destination": "/x"})[0], Unsubscribe)
    assert session.subscriptions == {"1": "/y"}


def test_a_message_that_the_version_cannot_say_closes_with_an_error():
    session = connected("1.0")
    said(session, "SUBSCRIBE", {"destination": "/x"})
    assert not session.message("/x", b"", {"event": "two\nlines"})
    assert session.closed
    assert [frame.command for frame in told(session)] == ["ERROR"]


WRONG = [
    ("SEND", {}, b"", "SEND needs the header 'destination'"),
    ("SEND", {"destination": "/x", "transaction": "t"}, b"", "transactions are not served"),
    ("SUBSCRIBE", {"id": "0"}, b"", "needs the header 'destination'"),
    ("SUBSCRIBE", {"destination": "/x"}, b"", "needs the header 'id'"),
    ("SUBSCRIBE", {"destination": "/x", "id": "0", "ack": "client"}, b"", "only 'auto' is served"),
    ("SUBSCRIBE", {"destination": "/x", "id": "0", "ack": "client-individual"}, b"", "only 'auto' is served"),
    ("SUBSCRIBE", {"destination": "/x", "id": "0"}, b"body", "SUBSCRIBE has no body"),
    ("SUBSCRIBE", {"destination": "/x", "id": "taken"}, b"", "there is a subscription 'taken' already"),
    ("UNSUBSCRIBE", {"id": "0"}, b"", "there is no subscription '0'"),
    ("UNSUBSCRIBE", {}, b"", "needs the header 'id'"),
    ("CONNECT", {"accept-version": "1.2"}, b"", "on a connection that has one already"),
    ("STOMP", {"accept-version": "1.2"}, b"", "on a connection that has one already"),
    ("MESSAGE", {}, b"", "a frame of a server"),
    ("ERROR", {}, b"", "a frame of a server"),
    ("HELO", {}, b"", "unknown command 'HELO'"),
    *((command, {"id": "1"}, b"", f"{command} is refused") for command in NOT_SERVED),
]


@pytest.mark.parametrize(("command", "headers", "body", "reason"), WRONG)
def test_a_wrong_frame_is_an_error_that_closes(command, headers, body, reason):
    session = connected()
    said(session, "SUBSCRIBE", {"destination": "/x", "id": "taken"})
    error = error_of(session, said(session, command, headers | {"receipt": "r1"}, body))
    assert reason in error.body.decode()
    assert error.headers["receipt-id"] == "r1"
    assert said(session, "SEND", {"destination": "/x"}) == []
    assert session.tick(10**18) == []
    assert session.next_look() is None
    assert session.subscriptions == {}


@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE", "DISCONNECT", "ACK", "CONNECTED", "HELO"])
def test_any_frame_before_a_connect_is_an_error(command):
    session = Session(0)
    error_of(session, said(session, command, {"destination": "/x", "id": "0", "receipt": "1"}))


def test_garbage_is_an_error_and_what_came_before_it_counts():
    session = connected()
    events = session.receive(b"SEND\ndestination:/x\n\na\0garbage", 0)
    assert [type(event) for event in events] == [Send, Closed]
    assert "no STOMP command" in error_of(session, events).body.decode()
    assert session.buffered == 0
    assert session.unsent == 0


def test_subscriptions_have_a_bound():
    session = connected(max_subscriptions=2)
    for id in "01":
        assert isinstance(said(session, "SUBSCRIBE", {"destination": "/x", "id": id})[0], Subscribe)
    error_of(session, said(session, "SUBSCRIBE", {"destination": "/x", "id": "2"}))


def test_the_table_of_states_has_every_command_that_is_served():
    assert {command for _, command in TRANSITIONS} == {
        "CONNECT", "STOMP", "SUBSCRIBE", "UNSUBSCRIBE", "SEND", "DISCONNECT",
    }  # fmt: skip
    assert not {state for state, _ in TRANSITIONS} & {State.LEAVING, State.CLOSED}


# -- heart-beats


@pytest.mark.parametrize(
    ("offer", "beats", "sends", "hears"),
    [
        # (this side can, this side wants), "the peer can, the peer wants", intervals in ms or None
        ((10, 20), None, None, None),
        ((10, 20), "0,0", None, None),
        ((0, 0), "500,1000", None, None),
        ((10, 20), "500,1000", 1000, 500),
        ((2000, 3000), "500,1000", 2000, 3000),
        ((10, 20), "500,0", None, 500),
        ((10, 20), "0,1000", 1000, None),
        ((0, 20), "500,1000", None, 500),
        ((10, 0), "500,1000", 1000, None),
        ((10, 20), f"{10**30},{10**12}", LONGEST, LONGEST),
    ],
)
def test_intervals_are_the_greater_of_what_one_side_can_and_the_other_wants(offer, beats, sends, hears):
    session = connected("1.2", now=5, beats=beats, heart_beat=offer)
    assert session.beat_at() == (None if sends is None else 5 + sends * MS * 3 // 4)
    assert session.overdue_at() == (None if hears is None else 5 + 2 * hears * MS)
    looks = [time for time in (session.beat_at(), session.overdue_at()) if time is not None]
    assert session.next_look() == (min(looks) if looks else None)


def test_the_first_version_has_no_heart_beats():
    session = connected("1.0", beats="10,10")
    assert session.next_look() is None


def test_a_heart_beat_is_sent_when_nothing_else_was():
    session = connected(beats="0,1000", heart_beat=(1000, 0))
    said(session, "SUBSCRIBE", {"destination": "/x", "id": "0"})
    session.tick(749 * MS)
    assert session.take(749 * MS) == []
    session.tick(750 * MS)
    session.tick(751 * MS)
    assert told(session, 751 * MS) == [HEART_BEAT]
    assert session.beat_at() == (751 + 750) * MS
    session.message("0", b"x")
    assert len(session.take(1000 * MS)) == 1
    session.tick(1501 * MS)
    assert session.take(1501 * MS) == [], "a message counts"
    assert session.beat_at() == 1750 * MS


def test_a_peer_that_is_silent_for_two_intervals_is_lost():
    session = connected(beats="1000,0", heart_beat=(0, 1000))
    assert session.tick(1999 * MS) == []
    session.receive(b"\n", 1999 * MS)
    session.receive(b"SEND\n", 3000 * MS)  # part of a frame counts
    session.receive(b"", 2000 * MS)  # a clock that goes back does not
    assert session.tick(4999 * MS) == []
    events = session.tick(5000 * MS)
    assert events == [Closed("no heart-beat within 2000 ms")]
    error_of(session, events)
    assert session.tick(9000 * MS) == []


def test_a_peer_that_does_not_connect_is_lost():
    session = Session(0, connect_within=1000 * MS)
    assert session.next_look() == 1000 * MS
    events = session.tick(1000 * MS)
    assert "no CONNECT within 1000 ms" in error_of(session, events).body.decode()


def test_heart_beats_begin_when_the_peer_is_told():
    session = Session(0, heart_beat=(100, 100))
    (connect,) = said(session, "CONNECT", {"accept-version": "1.2", "heart-beat": "100,100"})
    assert session.next_look() is None, "the program takes its time"
    assert session.tick(10_000 * MS) == []
    session.done(connect)
    assert session.next_look() is None
    assert len(session.take(10_000 * MS)) == 1
    assert (session.beat_at(), session.overdue_at()) == (10_075 * MS, 10_200 * MS)


@pytest.mark.parametrize("beats", ["", "1", "1,2,3", "-1,0", "a,b", "1.5,0", "٣,0"])
def test_a_heart_beat_header_that_is_none_is_an_error(beats):
    session = Session(0)
    error = error_of(session, said(session, "CONNECT", {"accept-version": "1.2", "heart-beat": beats}))
    assert b"two numbers of milliseconds" in error.body


def test_an_offer_that_cannot_be_is_a_mistake():
    with pytest.raises(InvalidArgument, match="heart_beat"):
        Session(0, heart_beat=(-1, 0))


# -- what a program adds -------------------------------------------------------------------------------------


def test_a_receipt_and_an_error_carry_headers_of_the_program():
    session = Session(0)
    (connect,) = session.receive(encode(Frame("CONNECT", {"accept-version": "1.2", "host": "a"})), 0)
    session.done(connect, {"not": "said"})
    (send,) = session.receive(encode(Frame("SEND", {"destination": "a", "receipt": "1"}, b"x")), 0)
    session.done(send, {"accepted": "true", "id": "a:b"})
    session.close("too slow", {"since": "7"})
    connected, receipt, error = session.take(0)
    assert b"not:" not in connected
    assert receipt == b"RECEIPT\nreceipt-id:1\naccepted:true\nid:a\\cb\n\n\0"
    assert b"\nsince:7\n" in error


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_a_message_made_once_for_many_is_the_same_as_one_made_for_each(version):
    headers, body = {"message-id": "7", "kind": "a", "clock": "1"}, b"{}"
    session = Session(0)
    (connect,) = session.receive(encode(Frame("CONNECT", {"accept-version": version, "host": "a"})), 0)
    session.done(connect)
    id = "a" if version == "1.0" else "a:\\\n"
    (subscribe,) = session.receive(encode(Frame("SUBSCRIBE", {"id": id, "destination": "/x"}), version), 0)
    session.done(subscribe)
    session.take(0)
    before = session.frames
    assert session.message(id, body, {"kind": "a", "clock": "1"}, "7")
    assert session.message_part(id, rest_of_message(version, headers, body))
    assert session.message_part(id, rest_of_message(version, headers, body))
    assert (session.frames - before, session.unsent) == (3, sum(map(len, session._out)))
    assert len(set(session.take(0))) == 1
    assert session.unsent == 0
    session.receive(encode(Frame("UNSUBSCRIBE", {"id": id}), version), 0)
    assert not session.message_part(id, b"")
    # Another subscription of this id is another destination.
    session.receive(encode(Frame("SUBSCRIBE", {"id": id, "destination": "/y"}), version), 0)
    session.message_part(id, rest_of_message(version, headers, body))
    assert b"\ndestination:/y\n" in session.take(0)[0]
