r"""STOMP frames to bytes and back, in the versions 1.0, 1.1 and 1.2.

    SEND                        a command
    destination:/app/gates/a    headers: a name, a colon, a value
    content-length:5
                                a blank line
    hello^@                     the body, and a NUL; then any number of line ends, which are heart-beats

The naive parser looks for the NUL, splits at line ends and decodes. It fails on a body that contains a NUL, on a frame
that comes in pieces (a stream is cut anywhere), and on a peer that never sends the NUL, for which it buffers without
end. This one keeps what is not yet a frame, remembers how far it has looked, and refuses a frame as soon as a bound is
certain to be broken: a `content-length` above `max_body` is an error at the blank line, before one byte of the body is
kept. So between calls the parser never keeps more than `max_header_bytes` and `max_body` together, and each byte is
looked at once.

What differs between versions:

    version   line end      escapes in headers      spaces around names and values
    1.0       LF            none                    are dropped (its own examples have them)
    1.1       LF            \n \c \\                belong to them
    1.2       LF or CR LF   \n \c \\ \r             belong to them

CONNECT and CONNECTED are never escaped, so that peers that do not know each other's version can read them. Any other
escape is an error: the specification forbids to guess. Of headers with the same name the first counts.

More generous than the grammar: a colon in a value that is not escaped is taken as it stands, since clients send it.
Stricter: a NUL in a header is an error. It is what a frame without its blank line looks like.

`version` may be set between frames. A server reads the first frame as 1.2, which all versions of CONNECT fit, and goes
on in the version that it has agreed upon.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from headway.errors import HeadwayError, InvalidArgument

VERSIONS: Final = ("1.0", "1.1", "1.2")

MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 16 * 1024
MAX_BODY: Final = 1024 * 1024
"""What a parser accepts unless told otherwise."""

LONGEST_COMMAND: Final = 32
COMMAND: Final = re.compile(rb"[A-Z]+")
NOT_ESCAPED: Final = frozenset({"CONNECT", "CONNECTED"})

ESCAPES: Final[dict[str, dict[str, str]]] = {
    "1.0": {},
    "1.1": {"\\": "\\\\", "\n": "\\n", ":": "\\c"},
    "1.2": {"\\": "\\\\", "\n": "\\n", ":": "\\c", "\r": "\\r"},
}
_TO_WIRE: Final = {version: str.maketrans(table) for version, table in ESCAPES.items()}
_FROM_WIRE: Final = {
    version: {escape: plain for plain, escape in table.items()} for version, table in ESCAPES.items()
}
_ESCAPE: Final = re.compile(r"\\.?", re.DOTALL)


class StompError(HeadwayError):
    """What was received, or is to be sent, is no STOMP frame of this version, or is above a bound.

    >>> parser = Parser()
    >>> parser.feed(b"GET / HTTP/1.1\\r\\n")
    >>> parser.next()
    Traceback (most recent call last):
    headway.stomp.codec.StompError: no STOMP command: b'GET / HTTP/1.1'
    """


class Frame(NamedTuple):
    """A command, headers and a body.

    >>> encode(Frame("SEND", {"destination": "/app/a"}, b"hello"))
    b'SEND\\ndestination:/app/a\\ncontent-length:5\\n\\nhello\\x00'
    """

    command: str
    headers: Mapping[str, str] = {}
    body: bytes = b""


class HeartBeat(NamedTuple):
    """One line end or more between frames: the peer is there."""


HEART_BEAT: Final = HeartBeat()


def checked_version(version: str) -> str:
    if version not in VERSIONS:
        raise InvalidArgument("version", version, "'1.0', '1.1' or '1.2'")
    return version


def shown(what: str | bytes) -> str:
    """A part of what a peer has sent, for a message: short and printable."""
    return repr(what if len(what) <= 40 else what[:40]) + ("..." if len(what) > 40 else "")


# -- frames to bytes -------------------------------------------------------------------------------------


def encode(frame: Frame, version: str = "1.2") -> bytes:
    r"""The bytes of a frame. A body gets its `content-length`.

    >>> encode(Frame("MESSAGE", {"a:b": "1\n2"}), "1.1")
    b'MESSAGE\na\\cb:1\\n2\n\n\x00'

    Raises `StompError` for what the version cannot say, such as a line end in a header of 1.0.
    """
    checked_version(version)
    command, headers, body = frame
    if len(command) > LONGEST_COMMAND or not COMMAND.fullmatch(command.encode(errors="replace")):
        raise StompError(f"no STOMP command: {shown(command)}")
    lines = [command]
    plain = "1.0" if command in NOT_ESCAPED else version
    for name, value in headers.items():
        if name != "content-length":
            lines.append(f"{_escaped(name, plain, version, True)}:{_escaped(value, plain, version, False)}")
    if body:
        lines.append(f"content-length:{len(body)}")
    try:
        return "\n".join([*lines, "", ""]).encode() + body + b"\0"
    except UnicodeEncodeError as error:
        raise StompError(f"a header has no UTF-8: {shown(error.object)}") from error


def _escaped(text: str, escapes: str, version: str, name: bool) -> str:
    escaped = text.translate(_TO_WIRE[escapes])
    # What would end the name or the line, and has no escape here.
    if (
        "\n" in escaped
        or "\0" in escaped
        or (version == "1.2" and "\r" in escaped)
        or (name and (":" in escaped or not escaped))
    ):
        raise StompError(
            f"STOMP {version} cannot say {shown(text)} in a header {'name' if name else 'value'}"
        )
    return escaped


# -- bytes to frames -------------------------------------------------------------------------------------


class Parser:
    """Bytes in, cut anywhere; frames and heart-beats out.

    >>> parser = Parser()
    >>> parser.feed(b"SEND\\ndestination:/app/a")
    >>> parser.next()  # None: the frame is not complete
    >>> parser.feed(b"\\n\\nhello\\0\\n")
    >>> parser.next()
    Frame(command='SEND', headers={'destination': '/app/a'}, body=b'hello')
    >>> parser.next()
    HeartBeat()

    After an error it keeps nothing, and raises the same error again: there is no way to find the next frame.
    """

    __slots__ = (
        "_buffer",
        "_command",
        "_count",
        "_error",
        "_header_bytes",
        "_headers",
        "_in_body",
        "_length",
        "_looked",
        "_version",
        "max_body",
        "max_header_bytes",
        "max_headers",
    )

    def __init__(
        self,
        version: str = "1.2",
        max_headers: int = MAX_HEADERS,
        max_header_bytes: int = MAX_HEADER_BYTES,
        max_body: int = MAX_BODY,
    ) -> None:
        self._version = checked_version(version)
        self.max_headers = max_headers
        self.max_header_bytes = max_header_bytes
        self.max_body = max_body
        self._buffer = bytearray()
        self._error: StompError | None = None
        self._begin()

    def _begin(self) -> None:
        """Between two frames."""
        self._looked = 0  # up to here the buffer has no end of the line, or of the body
        self._command = ""
        self._headers: dict[str, str] = {}
        self._count = 0
        self._header_bytes = 0
        self._in_body = False
        self._length: int | None = None  # None: the body ends with the first NUL

    @property
    def version(self) -> str:
        """The version by which the next frame is read."""
        return self._version

    @version.setter
    def version(self, version: str) -> None:
        self._version = checked_version(version)

    @property
    def buffered(self) -> int:
        """Bytes that are kept: those of a frame that is not complete, once `next` has said None."""
        return len(self._buffer)

    def feed(self, data: bytes | str) -> None:
        """Bytes came: a piece of a stream, or a whole WebSocket message, text or binary."""
        if self._error is not None:
            return
        if isinstance(data, str):
            try:
                data = data.encode()
            except UnicodeEncodeError:
                raise self._failed("a text has no UTF-8: it contains a lone surrogate") from None
        self._buffer += data

    def next(self) -> Frame | HeartBeat | None:
        """The next frame or heart-beat; None: more bytes are needed."""
        if self._error is not None:
            raise self._error
        if not self._command:
            if self._skip_line_ends():
                return HEART_BEAT
            if not self._read_command():
                return None
        while not self._in_body:
            line = self._line()
            if line is None:
                return None
            if line:
                self._read_header(line)
            else:
                self._end_headers()
        return self._read_body()

    def _failed(self, problem: str) -> StompError:
        self._buffer.clear()
        self._begin()
        self._error = StompError(problem)
        return self._error

    # -- command and headers

    def _skip_line_ends(self) -> bool:
        buffer, skipped = self._buffer, 0
        while buffer.startswith((b"\n", b"\r\n"), skipped):
            skipped += 1 if buffer[skipped] == 10 else 2
        del buffer[:skipped]
        return skipped > 0

    def _read_command(self) -> bool:
        line = self._line()
        # Garbage without a line end is told at once: the end might never come.
        command = bytes(self._buffer[: LONGEST_COMMAND + 2]).removesuffix(b"\r") if line is None else line
        if len(command) > LONGEST_COMMAND or not COMMAND.fullmatch(command):
            if line is None and not command:
                return False
            crlf = f" (lines of STOMP {self._version} end with LF alone)" if command.endswith(b"\r") else ""
            raise self._failed(f"no STOMP command: {shown(command)}{crlf}")
        if line is None:
            return False
        self._command = command.decode("ascii")
        return True

    def _line(self) -> bytes | None:
        """The next line without its end; None if it is not complete."""
        end = self._buffer.find(b"\n", self._looked)
        length = len(self._buffer) if end < 0 else end + 1
        if self._header_bytes + length > self.max_header_bytes:
            raise self._failed(f"the headers of a frame have more than {self.max_header_bytes} bytes")
        if end < 0:
            self._looked = length
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[:length]
        self._looked = 0
        self._header_bytes += length
        return line.removesuffix(b"\r") if self._version == "1.2" else line

    def _read_header(self, line: bytes) -> None:
        self._count += 1
        if self._count > self.max_headers:
            raise self._failed(f"a frame has more than {self.max_headers} headers")
        first, colon, second = line.partition(b":")
        if b"\0" in line or (self._version == "1.2" and b"\r" in line):
            raise self._failed(f"a header of {self._command} has a NUL or a lone CR: {shown(line)}")
        name, value = self._text(first), self._text(second)
        if not colon or not name:
            raise self._failed(f"no header (name:value) of {self._command}: {shown(line)}")
        self._headers.setdefault(name, value)  # the first of equal names counts

    def _text(self, part: bytes) -> str:
        try:
            text = part.decode()
        except UnicodeDecodeError:
            raise self._failed(f"a header of {self._command} is not UTF-8: {shown(part)}") from None
        if self._version == "1.0":
            return text.strip()
        if "\\" not in text or self._command in NOT_ESCAPED:
            return text
        known = _FROM_WIRE[self._version]
        for escape in _ESCAPE.findall(text):
            if escape not in known:
                raise self._failed(
                    f"STOMP {self._version} has no escape {shown(escape)}: header {shown(text)} of {self._command}"
                )
        return _ESCAPE.sub(lambda escape: known[escape[0]], text)

    def _end_headers(self) -> None:
        given = self._headers.get("content-length")
        if given is not None:
            if not (given.isascii() and given.isdigit()):
                raise self._failed(f"content-length is no number of bytes: {shown(given)}")
            # A number of very many digits is not even read.
            digits = given.lstrip("0") or "0"
            if len(digits) > 18 or int(digits) > self.max_body:
                raise self._failed(f"content-length {shown(given)} is above {self.max_body}")
            self._length = int(digits)
        self._in_body = True

    # -- body

    def _read_body(self) -> Frame | None:
        buffer, end = self._buffer, self._length
        if end is None:
            end = buffer.find(b"\0", self._looked)
            if (len(buffer) if end < 0 else end) > self.max_body:
                raise self._failed(f"the body of {self._command} has more than {self.max_body} bytes")
            if end < 0:
                self._looked = len(buffer)
                return None
        elif len(buffer) <= end:
            return None
        elif buffer[end]:
            raise self._failed(f"the body of {self._command} is longer than its content-length {end}")
        frame = Frame(self._command, self._headers, bytes(buffer[:end]))
        del buffer[: end + 1]
        self._begin()
        return frame
