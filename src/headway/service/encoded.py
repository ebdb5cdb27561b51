"""An answer as it is sent: its status, the lines of its head, and its body.

The head is bytes from the start, since the hot calls write it as it is. Where the web framework answers, the lines
become the pairs that ASGI has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from starlette.responses import Response

JSON: Final = "application/json"
PROBLEM_JSON: Final = "application/problem+json"


class Encoded(Struct, frozen=True, gc=False):
    """An answer. `head` has whole lines, without those of the length and the type of the body.

    >>> Encoded(200, b"retry-after: 1\\r\\n", JSON, b"{}").pairs()
    [(b'retry-after', b'1')]
    """

    status: int
    head: bytes
    media_type: str
    body: bytes

    def __len__(self) -> int:
        return 1000 + len(self.head) + len(self.body)  # and what a table of answers needs for it

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """The lines of the head, as ASGI has them."""
        lines = (line.partition(b": ") for line in self.head.split(b"\r\n")[:-1])
        return [(name, value) for name, _, value in lines]

    def response(self) -> Response:
        """The answer of the web framework."""
        response = Response(self.body, self.status, media_type=self.media_type)
        response.raw_headers[:0] = self.pairs()
        return response


def lines_of(headers: Mapping[str, str]) -> bytes:
    """Headers as the lines of a head.

    >>> lines_of({"Retry-After": "1"})
    b'retry-after: 1\\r\\n'
    """
    return "".join([f"{name.lower()}: {value}\r\n" for name, value in headers.items()]).encode("latin-1")
