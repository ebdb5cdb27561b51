from typing import Any

from headway.service.calls import ApiCall
from headway.service.service import Service

MOST_BODIES: int
LONGEST_BODY: int
MOST_HEADS: int

class QuickAcquires:
    done: int
    answered: int
    requests: int
    def __init__(self, hot: Any, service: Service, call: ApiCall) -> None: ...
    @property
    def kept(self) -> tuple[int, int]: ...
    def __call__(self, data: bytes, default_headers: list[tuple[bytes, bytes]]) -> bytes | None: ...
