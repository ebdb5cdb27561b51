"""Heart-beats: how two sides agree on them, when one is to be sent, and when the peer is taken for lost.

Each side says what it can send and what it wants to get, in milliseconds, and 0 is "none". A direction has heart-beats
if its sender can and its receiver wants; the interval is then the greater of the two numbers.

    this side can a, wants b; the peer can c, wants d
    this side sends every max(a, d), if neither is 0
    the peer sends every max(c, b), if neither is 0

Any bytes count as a heart-beat. This side sends after three quarters of its interval, so that a timer may be late by a
quarter, and takes the peer for lost after twice the peer's interval, since a network may be late too.

Heart-beats begin when CONNECTED is handed out (`begin`). Before that a peer has `connect_within` to say CONNECT, and
then the program takes its time to answer it. Time is an argument, in nanoseconds of any clock; one that goes back is
taken to stand still.
"""

from __future__ import annotations

from typing import Final

MS: Final = 1_000_000
LONGEST: Final = 24 * 3600 * 1000
"""Milliseconds: a peer that offers or wants rarer heart-beats gets this interval."""


class HeartBeats:
    """Both directions of one connection.

    >>> beats = HeartBeats(0, offer=(1000, 3000), connect_within=10_000 * MS)
    >>> beats.agree(can=2000, wants=4000)
    >>> beats.begin(0)
    >>> beats.send_at() // MS, beats.overdue_at() // MS
    (3000, 6000)
    """

    __slots__ = ("_agreed", "_heard", "_sent", "offer", "patience", "send_every")

    def __init__(self, now: int, offer: tuple[int, int], connect_within: int) -> None:
        self.offer = offer
        # How often this side sends, and for how long it hears nothing before the peer is lost; 0: never.
        self.send_every = 0
        self.patience = connect_within
        self._agreed: tuple[int, int] | None = None
        self._sent = self._heard = now

    def agree(self, can: int, wants: int) -> None:
        """What the peer says in CONNECT."""
        mine, theirs = self.offer
        send_every = max(mine, wants) * MS if mine and wants else 0
        hear_every = max(theirs, can) * MS if theirs and can else 0
        self._agreed = send_every, 2 * hear_every
        self.patience = 0

    def begin(self, now: int) -> None:
        """CONNECTED goes out now."""
        if self._agreed is not None:
            (self.send_every, self.patience), self._agreed = self._agreed, None
            self.sent(now)
            self.heard(now)

    def sent(self, now: int) -> None:
        self._sent = max(self._sent, now)

    def heard(self, now: int) -> None:
        self._heard = max(self._heard, now)

    def send_at(self) -> int | None:
        """When one is to be sent, if nothing else is before; None: never."""
        return self._sent + self.send_every * 3 // 4 if self.send_every else None

    def overdue_at(self) -> int | None:
        """When the peer is lost, if it sends nothing before; None: never."""
        return self._heard + self.patience if self.patience else None


def parse_beats(text: str | None) -> tuple[int, int] | None:
    """A `heart-beat` header: what the peer can send and wants, in ms; None if it is not one. Without it, neither.

    >>> parse_beats("500,1000"), parse_beats(None), parse_beats("soon")
    ((500, 1000), (0, 0), None)
    """
    if text is None:
        return 0, 0
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    # A number of very many digits is not even read.
    can, wants = (LONGEST if len(part) > 18 else min(int(part), LONGEST) for part in parts)
    return can, wants
