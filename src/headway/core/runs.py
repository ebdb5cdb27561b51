# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""A queue of (time, count) pairs in the order of time: what a window remembers.

A sliding window must know when each of its permits comes back. One number per permit is too much for a million
a day, so permits that share a time share an entry, a *run*. Runs arrive in the order of time and leave in the
order of time; only a permit that ends early is looked up in the middle, by bisection. One that comes out of turn is put
in its place, and those behind it make room.

The pairs lie in one flat array of 64-bit integers, used as a ring: entry i is at `cells[2 * ((head + i) &
mask)]`. Emptied runs in the middle stay until an end reaches them or the ring is full, when they are squeezed
out; so the ring never grows beyond twice the number of live runs.
"""

from __future__ import annotations

from array import array

SMALLEST = 4
NEVER = (1 << 63) - 1


class Runs:
    __slots__ = ("cells", "first", "head", "mask", "size", "total")

    def __init__(self) -> None:
        self.cells = array("q", bytes(16 * SMALLEST))
        self.mask = SMALLEST - 1
        self.head = 0
        self.size = 0
        self.total = 0
        # The time of the first run; NEVER without one. It is looked at before every decision, so it is kept at hand.
        self.first = NEVER

    def last_time(self) -> int:
        return self.cells[2 * ((self.head + self.size - 1) & self.mask)]

    def add(self, time: int, count: int) -> int:
        """Add at the end; a time before the last run's is rounded up to it. Returns the time that was recorded."""
        if self.size > 0:
            last = 2 * ((self.head + self.size - 1) & self.mask)
            if self.cells[last] >= time:
                self.cells[last + 1] += count
                self.total += count
                return self.cells[last]
            if self.size > self.mask:
                self.make_room()
        spot = 2 * ((self.head + self.size) & self.mask)
        self.cells[spot] = time
        self.cells[spot + 1] = count
        self.size += 1
        if self.size == 1:
            self.first = time
        self.total += count
        return time

    def insert(self, time: int, count: int) -> int:
        """Add in the order of time, wherever that is. Returns the time."""
        low = self.pool_of(time)
        if low >= self.size:
            return self.add(time, count)
        spot = 2 * ((self.head + low) & self.mask)
        if self.cells[spot] != time:
            if self.size > self.mask:
                self.make_room()
                low = self.pool_of(time)
            for i in range(self.size, low, -1):
                spot = 2 * ((self.head + i) & self.mask)
                before = 2 * ((self.head + i - 1) & self.mask)
                self.cells[spot] = self.cells[before]
                self.cells[spot + 1] = self.cells[before + 1]
            self.size += 1
            spot = 2 * ((self.head + low) & self.mask)
            self.cells[spot] = time
            self.cells[spot + 1] = 0
        self.cells[spot + 1] += count
        self.total += count
        self.first = self.cells[2 * self.head]
        return time

    def pool_of(self, time: int) -> int:
        """Where the first run is that is not before this time."""
        low = 0
        high = self.size
        while low < high:
            middle = (low + high) // 2
            if self.cells[2 * ((self.head + middle) & self.mask)] < time:
                low = middle + 1
            else:
                high = middle
        return low

    def pop(self) -> int:
        """Drop the first run; returns its count."""
        count = self.cells[2 * self.head + 1]
        self.head = (self.head + 1) & self.mask
        self.size -= 1
        self.total -= count
        self.trim()
        return count

    def remove(self, time: int, count: int) -> int:
        """Take up to `count` out of the run of exactly this time; returns how many were found there."""
        low = self.pool_of(time)
        if low >= self.size:
            return 0
        spot = 2 * ((self.head + low) & self.mask)
        if self.cells[spot] != time:
            return 0
        found = self.cells[spot + 1]
        if found > count:
            found = count
        self.cells[spot + 1] -= found
        self.total -= found
        if self.cells[spot + 1] == 0:
            self.trim()
        return found

    def trim(self) -> None:
        """Drop emptied runs at both ends: the first and the last time are those of live ones."""
        while self.size > 0 and self.cells[2 * self.head + 1] == 0:
            self.head = (self.head + 1) & self.mask
            self.size -= 1
        while self.size > 0 and self.cells[2 * ((self.head + self.size - 1) & self.mask) + 1] == 0:
            self.size -= 1
        if self.size > 0:
            self.first = self.cells[2 * self.head]
        else:
            self.first = NEVER

    def time_of(self, count: int) -> int:
        """The time of the run that brings the sum to `count`; there must be as many."""
        spot = 2 * self.head
        for i in range(self.size):
            spot = 2 * ((self.head + i) & self.mask)
            count -= self.cells[spot + 1]
            if count <= 0:
                break
        return self.cells[spot]

    def shift(self, by: int) -> None:
        """Move every time."""
        for i in range(self.size):
            self.cells[2 * ((self.head + i) & self.mask)] += by
        self.trim()

    def make_room(self) -> None:
        """Squeeze empty runs out, into a ring of at least twice as many places as runs are left."""
        live = self.pairs()
        places = SMALLEST
        while places < len(live):
            places *= 2
        size = len(live) // 2
        # All at once, without a call in between: see `headway.interrupts`.
        self.cells = array("q", live + (0,) * (2 * places - 2 * size))
        self.head = 0
        self.size = size
        self.mask = places - 1

    def mend(self) -> None:
        """Reckon the sum and the ends anew, after an exception came in the middle of a change."""
        self.total = sum(self.pairs()[1::2])
        self.trim()

    def copy(self) -> Runs:
        twin = Runs()
        twin.cells = array("q", self.cells)
        twin.head = self.head
        twin.mask = self.mask
        twin.size = self.size
        twin.total = self.total
        twin.first = self.first
        return twin

    def pairs(self) -> tuple[int, ...]:
        """The live runs, flat: (time, count, time, count, ...)."""
        flat: list[int] = []
        for i in range(self.size):
            spot = 2 * ((self.head + i) & self.mask)
            if self.cells[spot + 1] > 0:
                flat.append(self.cells[spot])
                flat.append(self.cells[spot + 1])
        return tuple(flat)
