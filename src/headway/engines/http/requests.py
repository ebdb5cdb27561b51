"""What a client says to a service: commands with the state of their delivery, and the clock of the other side.

A command gets its number when it is put into a batch, and keeps it: the server applies a number once, so a batch whose
answer was lost is sent again as it was. A server that does not know the session any more has forgotten its numbers, and
the permits that it gave out; then the commands that callers still wait for are sent anew, under new numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from headway.engines.http.decision import RemoteDecision


class Sample(NamedTuple):
    """One look at the server's clock: it showed `now` at some moment between two on ours."""

    sent: int
    received: int
    now: int

    def earliest(self, at: int, drift: float) -> int:
        """When, on our clock, the server's shows `at`, at the earliest.

        >>> Sample(100, 200, 5000).earliest(6000, 0.01), Sample(100, 200, 5000).latest(6000, 0.01)
        (1090, 1210)
        """
        left = at - self.now
        return self.sent + int(left * (1 - drift if left > 0 else 1 + drift))

    def latest(self, at: int, drift: float) -> int:
        """The same, at the latest."""
        left = at - self.now
        return self.received + int(left * (1 + drift if left > 0 else 1 - drift))


class Opened(Protocol):
    """What is opened in a session before commands can name it by its number: a limiter's ledgers, a gate."""

    number: int
    opened: int
    """The session in which the server knows it."""

    def opening(self) -> list[Any]:
        """The command that opens it."""

    def apply_opening(self, answer: Any) -> None: ...


class Request:
    """A command: `words` are its verb and arguments, after the number of what it is for."""

    __slots__ = (
        "answer",
        "applied",
        "done",
        "error",
        "first_sent",
        "future",
        "id",
        "loop",
        "orphan",
        "sample",
        "target",
        "text",
        "waker",
        "words",
    )

    def __init__(self, target: Opened | None, *words: Any) -> None:
        self.target = target
        self.words = words
        self.id = 0
        self.text = ""
        self.done = self.orphan = self.applied = False
        self.answer: Any = None
        self.error: BaseException | None = None
        self.sample: Sample | None = None
        self.first_sent = 0
        # The thread or the task that waits for the answer, if one does.
        self.waker: Any = None
        self.loop: Any = None
        self.future: Any = None

    @property
    def awaited(self) -> bool:
        """Whether a caller waits for the answer."""
        return not self.orphan and (self.waker is not None or self.future is not None)

    def encode(self, session: int) -> list[Any] | None:  # noqa: ARG002 - permits belong to one
        """What is sent in this session; None: it makes no sense there."""
        verb, *rest = self.words
        return [self.id, verb, *rest] if self.target is None else [self.id, verb, self.target.number, *rest]

    def numbered(self, session: int) -> None:
        """It has its number, and is about to be sent."""

    def apply(self, answer: Any, sample: Sample) -> None:
        """The server has answered."""
        self.answer = answer
        self.sample = sample

    def unheard(self) -> None:
        """The server has answered, and the caller has gone."""


class Open(Request):
    """Goes before the first command for something in a session."""

    __slots__ = ()

    def __init__(self, opened: Opened) -> None:
        Request.__init__(self, opened)

    def encode(self, session: int) -> list[Any] | None:  # noqa: ARG002
        assert self.target is not None
        return [self.id, *self.target.opening()]

    def apply(self, answer: Any, sample: Sample) -> None:  # noqa: ARG002
        assert self.target is not None
        self.target.apply_opening(answer)


class AcquireRequest(Request):
    """Takes a permit; the decision is the permit's identity from then on."""

    __slots__ = ("decision",)

    def __init__(self, target: Opened, decision: RemoteDecision, *words: Any) -> None:
        Request.__init__(self, target, *words)
        self.decision = decision

    def numbered(self, session: int) -> None:
        self.decision.numbered(session, self.id)

    def apply(self, answer: Any, sample: Sample) -> None:
        self.decision.apply(answer, sample)

    def unheard(self) -> None:
        self.decision.withdraw()


class PermitRequest(Request):
    """Says something of a permit: how it ended, that it was entered, that its caller has gone."""

    __slots__ = ("decision",)

    def __init__(self, decision: RemoteDecision, *words: Any) -> None:
        Request.__init__(self, None, *words)
        self.decision = decision

    def encode(self, session: int) -> list[Any] | None:
        if self.decision.session != session:
            return None  # the server that granted it is gone, and the permit's lease runs out
        verb, *rest = self.words
        return [self.id, verb, self.decision.permit, *rest]
