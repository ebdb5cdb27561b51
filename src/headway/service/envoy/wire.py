"""What protobuf's wire format is made of: varints, tags, lengths, and fields that are not known.

A message is a row of fields. Each begins with a tag, a varint of the field's number times 8 plus its wire type; the
type says how long the rest is, so a reader can skip what it does not know. A known field whose wire type is not the
expected one is skipped too, as protobuf's own readers do.

The readers take the bytes, a position and the end of the message they are in, and return the new position with what
they have read: no slices, no stream objects, so that the same lines are fast when they are compiled.
"""

from __future__ import annotations

from collections.abc import Iterator

from headway.service.envoy.messages import MalformedMessage

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = 0, 1, 2, 3, 4, 5

MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1

DEEPEST = 100
"""Groups within groups; protobuf's readers stop there too."""

LONGEST_VARINT, LONGEST_TAG = 10, 5


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number of up to 64 bits, and the position after it.

    >>> read_varint(bytes([0xAC, 0x02]), 0, 2)
    (300, 2)
    """
    value = shift = 0
    start = at
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & MASK64, at
        shift += 7
        if at - start == LONGEST_VARINT:
            raise MalformedMessage("a varint is longer than 10 bytes", at=start)
    raise MalformedMessage("the message ends within a varint", at=start)


def read_tag(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A tag, and the position after it."""
    tag, after = read_varint(data, at, end)
    if after - at > LONGEST_TAG or tag > MASK32 or tag < 8:
        raise MalformedMessage("no field has such a tag", at=at)
    return tag, after


def read_length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where a field of a given length begins and ends."""
    size, start = read_varint(data, at, end)
    if size > end - start:
        raise MalformedMessage("a field is longer than its message", at=at)
    return start, start + size


def read_text(data: bytes, start: int, end: int) -> str:
    """A string."""
    try:
        return str(data[start:end], "utf-8")
    except UnicodeDecodeError:
        raise MalformedMessage("a string is not UTF-8", at=start) from None


def skip_field(data: bytes, at: int, end: int, tag: int, depth: int = 0) -> int:
    """The position after a field whose tag was read just before `at`."""
    kind = tag & 7
    if kind == VARINT:
        return read_varint(data, at, end)[1]
    if kind == LENGTH:
        return read_length(data, at, end)[1]
    if kind in (FIXED64, FIXED32):
        after = at + (8 if kind == FIXED64 else 4)
        if after > end:
            raise MalformedMessage("the message ends within a field", at=at)
        return after
    if kind == GROUP:
        return _skip_group(data, at, end, tag, depth)
    problem = "a group ends that did not begin" if kind == END_GROUP else f"there is no wire type {kind}"
    raise MalformedMessage(problem, at=at)


def _skip_group(data: bytes, at: int, end: int, tag: int, depth: int) -> int:
    if depth >= DEEPEST:
        raise MalformedMessage(f"more than {DEEPEST} groups within groups", at=at)
    start = at
    while at < end:
        # Nothing within it is known, so any number will do, 0 among them.
        inner, at = read_varint(data, at, end)
        if inner > MASK32:
            raise MalformedMessage("no field has such a tag", at=start)
        if inner == tag - GROUP + END_GROUP:
            return at
        at = skip_field(data, at, end, inner, depth + 1)
    raise MalformedMessage("the message ends within a group", at=start)


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Every field as (number, wire type, value, 0), or with where it begins and ends."""
    while at < end:
        tag, at = read_tag(data, at, end)
        if tag & 7 == VARINT:
            value, at = read_varint(data, at, end)
            yield tag >> 3, VARINT, value, 0
        elif tag & 7 == LENGTH:
            start, at = read_length(data, at, end)
            yield tag >> 3, LENGTH, start, at
        else:
            at = skip_field(data, at, end, tag)


def int32(value: int) -> int:
    """A varint as the signed number of 32 bits that an enum has."""
    value &= MASK32
    return value - (1 << 32) if value >> 31 else value


# -- writing -------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """A number from 0 to 2**64 - 1.

    >>> varint(300).hex()
    'ac02'
    """
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(number: int, value: int) -> bytes:
    """A field with a number; nothing for 0, which is what an absent field means. Negative ones are written as 64
    bits."""
    return varint(number << 3 | VARINT) + varint(value & MASK64) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """A field with bytes, a string or a message, also where it is empty."""
    return varint(number << 3 | LENGTH) + varint(len(value)) + value


def text_field(number: int, value: str) -> bytes:
    """A field with a string; nothing for an empty one."""
    return bytes_field(number, value.encode()) if value else b""
