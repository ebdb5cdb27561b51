"""STOMP 1.0, 1.1 and 1.2 without I/O: bytes and the time come in, bytes and events come out.

    codec          frames to bytes and back: `Frame`, `encode`, `Parser`
    session        a server's side of one connection: `Session`
    events         what a session tells its program
    heart_beats    how often each side says that it is there

It knows neither sockets nor WebSockets, neither threads nor tasks, and not what a destination is: a program that has a
connection feeds what it reads, acts on the events, and writes what `Session.take` hands out.
"""

from headway.stomp.codec import HEART_BEAT, VERSIONS, Frame, Parser, StompError, encode
from headway.stomp.events import Closed, Connect, Disconnect, Event, Send, Subscribe, Unsubscribe
from headway.stomp.session import Session, rest_of_message

__all__ = [
    "HEART_BEAT",
    "VERSIONS",
    "Closed",
    "Connect",
    "Disconnect",
    "Event",
    "Frame",
    "Parser",
    "Send",
    "Session",
    "StompError",
    "Subscribe",
    "Unsubscribe",
    "encode",
    "rest_of_message",
]
