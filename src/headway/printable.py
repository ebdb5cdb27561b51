"""Text from outside, made safe to show.

A key is often a remote user's name, and a terminal obeys what is written to it: an escape sequence changes colours,
the clipboard or the line above, a carriage return overwrites the row, and a bidirectional mark turns the rest of the
line around. So every name, key or text of a server passes through `printable` before it is printed or logged, or
through `repr`, which escapes the same characters and adds quotes.
"""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""The text with every control, format and separator character escaped, as `repr` does it, but without quotes.

    Text that was made printable before is not changed again: a backslash stays as it is.

    >>> print(printable("bob\x1b[2J\r\nal\u202eice"))
    bob\x1b[2J\r\nal\u202eice
    >>> printable("Zoë [red]") == "Zoë [red]"
    True
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
