"""How many keys a limit may have ledgers for: without a bound, a client that invents keys fills the memory.

A ledger is forgotten when it equals a fresh one, which is `reset_after` seconds after it was used last. So a key is
counted for as long, and not for longer. What is remembered of a key is a number of 64 bits, whatever its length: two
keys of one number count as one, which is harmless.

Where the table is full, a key that is not in it is refused until another one is forgotten. Looking for those costs a
pass over the table, so it is done when the earliest of them is due, and not for every request of a flood.
"""

from __future__ import annotations

from collections.abc import Mapping

PAUSE = 0.25
"""Seconds between two passes, at least: for keys that are due one after the other."""
DECIDING = 5.0
"""Seconds for which a key is counted while its request is decided: many may be under way at once."""


class KeyTable:
    """The keys of one limit that have ledgers."""

    __slots__ = ("_due", "_next_pass", "latest", "most", "used_without_key")

    def __init__(self, most: int) -> None:
        self.most = most
        self._due: dict[int, float] = {}
        self._next_pass = 0.0
        # For the console, which shows some keys that were used lately: a look at this now and then is a sample.
        self.latest: str | Mapping[str, str | None] | None = None
        self.used_without_key = False

    def __len__(self) -> int:
        return len(self._due)

    def admits(self, key: str | Mapping[str, str | None] | None, now: float) -> bool:
        """Whether there is room for a ledger of this key, which is counted from now on.

        >>> table = KeyTable(1)
        >>> table.note("alice", 10.0)
        >>> table.admits("alice", 5.0), table.admits("bob", 5.0), table.admits("bob", 10.0), table.admits(None, 5.0)
        (True, False, True, True)
        """
        if key is None or (type(key) is str and hash(key) in self._due):
            return True
        missing = [number for number in _numbers(key) if number not in self._due]
        if len(self._due) + len(missing) > self.most and missing and now >= self._next_pass:
            self._due = {number: due for number, due in self._due.items() if due > now}
            self._next_pass = max(now + PAUSE, min(self._due.values(), default=0.0))
        if missing and len(self._due) + len(missing) > self.most:
            return False
        for number in missing:
            self._due[number] = now + DECIDING
        return True

    def retry_after(self, now: float) -> float:
        """Seconds until a key may have been forgotten, when there is no room."""
        return max(0.0, self._next_pass - now)

    def note(self, key: str | Mapping[str, str | None] | None, due: float) -> None:
        """A key was used, and has a ledger until `due`."""
        self.latest = key
        if key is None:
            self.used_without_key = True
            return
        if type(key) is str:
            self._due[hash(key)] = due
            return
        for number in _numbers(key):
            # A pass that is planned for later would not find a key that is due before it, which is on the safe side.
            self._due[number] = due


def _numbers(key: str | Mapping[str, str | None]) -> list[int]:
    if isinstance(key, str):
        return [hash(key)]
    return [hash(item) for item in key.items() if item[1] is not None]
