"""Lines of the input, none of which is lost after Ctrl-C.

The naive filter says `for line in sys.stdin`, and that reads ahead: a thousand lines are in a buffer when the first has
been written. If such a filter is stopped and another program reads on, those lines are missing. So a line is taken from
the input only when its turn has come and it will be written at once:

  a file   is read in blocks; at the end its position is set back to the end of the last line that was let through
  a pipe   is read byte by byte up to the end of the line, where lines are few enough for that (`sparing`)
  others   (and pipes where lines are many) are read in blocks; lines that were read too early are counted and reported

Ctrl-C may come between any two instructions, also between reading a line and writing it. The `SigintGuard` lets it
through
only where no line is in hand.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
from array import array
from types import FrameType
from typing import Any

if sys.platform != "win32":
    import fcntl
    import termios

BLOCK = 1 << 13


class SigintGuard:
    """Ctrl-C, delayed until it does no harm: it is raised inside of `with brake:`, and the second one anywhere.

    >>> brake = SigintGuard()
    >>> with brake:
    ...     pass  # wait here
    """

    def __init__(self) -> None:
        self._open = False
        self._pulled = False
        self._before: Any = None

    def install(self) -> None:
        """Handle Ctrl-C, unless the parent process has set it to be ignored (nohup, a script's background job)."""
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._pull)

    def remove(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _pull(self, _: int, __: FrameType | None) -> None:
        again, self._pulled = self._pulled, True
        if self._open or again:
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._open = True
        if self._pulled:
            self._open = False
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        self._open = False


class Lines:
    """The lines of an open file; a line counts as taken after `done`."""

    def __init__(self, file: int, brake: SigintGuard, *, sparing: bool) -> None:
        self.taken = 0
        self._file = file
        self._brake = brake
        mode = os.fstat(file).st_mode
        self._returnable = stat.S_ISREG(mode)
        self._by_byte = sparing and stat.S_ISFIFO(mode) and sys.platform != "win32"
        self._buffer = bytearray()
        self._at = 0
        self._end = 0

    def more(self) -> bool:
        """Whether there is another line; waits until that is known, and takes nothing from a pipe to know it."""
        if self._at < len(self._buffer):
            return True
        return self._arrived() if self._by_byte else self._read()

    def line(self) -> bytes:
        """The next line with its end, unchanged; empty when there is none."""
        seen = self._at
        while (end := self._buffer.find(b"\n", seen)) < 0:
            # Reading removes what is in front of the line, and does not search the rest of it again.
            seen = len(self._buffer) - self._at
            if not self._read():
                end = len(self._buffer) - 1
                break
        self._end = end + 1
        return bytes(self._buffer[self._at : self._end])

    def done(self) -> None:
        """The line has been written, or its command started."""
        self._at = self._end
        self.taken += 1

    def give_back(self) -> int:
        """Leave what was not taken to the next reader; returns the number of lines for which that is impossible."""
        rest = self._buffer[self._at :]
        self._buffer, self._at = bytearray(), 0
        if rest and self._returnable:
            os.lseek(self._file, -len(rest), os.SEEK_CUR)
            return 0
        return rest.count(b"\n") + (not rest.endswith(b"\n") if rest else 0)

    def _read(self) -> bool:
        with self._brake:
            if os.name == "posix":
                # The read itself must not be interrupted, so it comes when it is short.
                select.select([self._file], [], [])
        del self._buffer[: self._at]
        self._at = 0
        data = self._read_bytes() if self._by_byte else os.read(self._file, BLOCK)
        self._buffer += data
        return bool(data)

    def _read_bytes(self) -> bytes:
        """What has arrived of the line, up to its end and no further."""
        number = array("i", [0])
        fcntl.ioctl(self._file, termios.FIONREAD, number)
        data = bytearray()
        for _ in range(max(1, number[0])):
            byte = os.read(self._file, 1)
            data += byte
            if byte in (b"\n", b""):
                break
        return bytes(data)

    def _arrived(self) -> bool:
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        with self._brake:
            ((_, events),) = poll.poll()
        return bool(events & select.POLLIN)


def abandoned(file: int) -> bool:
    """Whether the reader of the pipe that we write to has closed it."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(file, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
