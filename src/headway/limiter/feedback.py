"""What a limiter does about what the remote says: pause, back off, or keep a lower limit.

`headway.feedback` reads an answer, and this decides. Told to wait, the key is paused for that time: on a shared
engine that is the whole fleet's pause. A little is added by chance, so that processes without a shared engine do not
come back in one moment. Refused without a word of how long, the key is paused by `headway.core.backoff`. A stated
limit below the configured one is followed (`headway.core.follow`), for all keys, as the limiter has one limit for
them; it is never raised above what was configured. Where the remote refuses and states no limit, a lower one is learned
from what it did serve (`headway.core.learned`); of calls without a key only, and of a limit that is one `Window`.

A `Reaction` is a value: what to do, decided under a lock, and then done by the limiter for a thread or for a task.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from headway.core.backoff import Backoff
from headway.core.follow import Stated, followed
from headway.core.learned import Learned
from headway.core.limits import Limit, Window
from headway.errors import InvalidArgument
from headway.feedback import Feedback, StatedLimit, profile_of, read

Kept = Limit | dict[str, Limit]
"""The limit of a limiter, or one for each metric."""

MAX_KEYS: Final = 10_000
"""Keys whose refusals are remembered; of more, the one that was refused longest ago is forgotten."""
MAX_DECIDED: Final = 100
"""Limits that were decided lately, which are remembered as such."""
LONGEST_BACKOFF: Final = 60 * 10**9
OVERLOADED: Final = 503
"""The status of a refusal that says nothing of how much one caller may use."""
SPREAD: Final = 0.1
"""The part of a stated wait that chance may add."""
MOST_SPREAD: Final = 1.0
"""Seconds that chance adds at most."""


class Heard(NamedTuple):
    """What a response says of limits, and its status."""

    said: Feedback | None
    status: int

    def of_its_key_alone(self) -> Heard:
        """The same, of which nothing is said of all keys."""
        if self.said is None or self.said.scope != "global":
            return self
        return self._replace(said=self.said._replace(scope=""))


class Reaction(NamedTuple):
    """What to do: pause a key (None: all) for so many seconds, and keep another limit; None or 0: not that."""

    seconds: float = 0.0
    key: str | None = None
    limit: Kept | None = None
    again: bool = False
    """Whether that limit was kept before, so that it is no news."""


class Reactions:
    """What one limiter remembers of refusals, and of the limit that it follows."""

    __slots__ = ("_backoffs", "_configured", "_decided", "_draw", "_followed", "_learned", "_lock", "_stated")

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._backoffs: OrderedDict[str | None, Backoff] = OrderedDict()
        self._configured: Kept | None = None
        self._followed: Kept | None = None
        self._decided: deque[Kept] = deque(maxlen=MAX_DECIDED)
        self._stated: Kept | None = None
        self._learned: Learned | None = None
        self._draw = draw
        self._lock = threading.Lock()

    def asks(self, heard: Heard, key: str | None, now: int, limit: Kept) -> bool:
        """Whether `to` has to know how much of the limit is used."""
        with self._lock:
            self._keep(limit)
            learned = self._learned
            return learned is not None and _teaches(*heard, key) and learned.begins(now)

    def to(
        self,
        heard: Heard,
        key: str | None,
        now: int,
        limit: Kept | None,
        used: int = 0,
        *,
        backs_off: bool = True,
    ) -> Reaction:
        """What to do now. `limit` is the one that is kept; None: it is not to be followed.

        `backs_off`: a refusal that says nothing of a time is followed by a pause.
        """
        said = heard.said
        with self._lock:
            self._keep(limit)
            seconds = 0.0
            paused = None if said is not None and said.scope == "global" else key
            if said is not None and (said.wait or (said.refused and backs_off)):
                seconds = self._pause(said, paused, now)
            elif paused in self._backoffs:
                self._backoffs[paused].answered(now)
            if limit is not None and self._learned is not None:
                if said is None or not said.refused:
                    self._learned.served(now)
                elif _teaches(*heard, key):
                    self._learned.refused(now, now + int(seconds * 1e9), used)
            if limit is None:
                return Reaction(seconds, paused)
            wanted, again = self._follow(() if said is None else said.limits)
            return Reaction(seconds, paused, None if wanted == limit else wanted, again)

    def _pause(self, said: Feedback, key: str | None, now: int) -> float:
        backoff = self._backoff(key)
        if said.wait:
            backoff.told(now, int(said.wait * 1e9))
            return said.wait + min(said.wait * SPREAD, MOST_SPREAD) * self._draw()
        return backoff.refused(now, self._draw()) / 1e9

    def _backoff(self, key: str | None) -> Backoff:
        found = self._backoffs.setdefault(key, Backoff(LONGEST_BACKOFF))
        self._backoffs.move_to_end(key)
        if len(self._backoffs) > MAX_KEYS:
            self._backoffs.popitem(last=False)
        return found

    def configured(self, limit: Kept) -> None:
        """The user has set another limit, and be it one that was followed before."""
        with self._lock:
            self._start(limit)

    def _keep(self, limit: Kept | None) -> None:
        """Note the limit that the user wants: the first one, or another one that was set meanwhile."""
        # What was decided by two calls at once may be set in another order, and is not the user's.
        if limit is None or limit == self._followed or limit in self._decided:
            return
        self._decided.clear()
        self._start(limit)

    def _start(self, limit: Kept) -> None:
        self._configured = self._followed = self._stated = limit
        self._learned = Learned(limit.count, limit.per_ns) if isinstance(limit, Window) else None

    def _follow(self, stated: Iterable[StatedLimit]) -> tuple[Kept, bool]:
        """The limit to keep from now on, and whether it was kept before."""
        configured = self._configured
        said = [one for one in stated if one.quota is not None]
        assert configured is not None
        if said:
            if isinstance(configured, Limit):
                self._stated = followed(configured, [_of(one) for one in said if _requests(one)])
            else:
                self._stated = {
                    metric: followed(part, [_of(one) for one in said if _belongs(one, metric)])
                    for metric, part in configured.items()
                }
        wanted = self._stated or configured
        if self._learned is not None and isinstance(wanted, Window) and self._learned.count < wanted.count:
            wanted = Window(self._learned.count, per=f"{wanted.per_ns}ns", remote=wanted.remote)
        again = wanted in self._decided
        if wanted != self._followed:
            self._followed = wanted
            self._decided.append(wanted)
        return wanted, again


def _teaches(said: Feedback | None, status: int, key: str | None) -> bool:
    """Whether a lower limit may be learned from it: it is a refusal that states no limit."""
    if said is None or not said.refused or key is not None or status == OVERLOADED:
        return False
    return not any(one.quota for one in said.limits)


def _of(stated: StatedLimit) -> Stated:
    per_ns = None if stated.window is None else round(stated.window * 1e9)
    return Stated(int(stated.quota or 0), per_ns, at_once=stated.unit == "concurrent-requests")


def _requests(stated: StatedLimit) -> bool:
    return stated.unit in ("requests", "concurrent-requests")


def _belongs(stated: StatedLimit, metric: str) -> bool:
    """Whether a stated limit is that of a metric: the names agree, apart from - and _."""
    names = {stated.name.replace("-", "_"), stated.unit.replace("-", "_")}
    return metric.replace("-", "_") in names or (metric == "requests" and _requests(stated))


# -- answers of other libraries --------------------------------------------------------------------------------


class Answer(NamedTuple):
    """Of an answer: its status, headers, body as far as it was read, and the host that gave it."""

    status: int
    headers: Any
    body: Any = None
    host: str = ""


def answer_of(response: Any) -> Answer:
    """The answer in a response of httpx, requests, aiohttp, urllib, botocore, or in `(status, headers[, body])`.

    >>> answer_of((429, {"Retry-After": "1"}))
    Answer(status=429, headers={'Retry-After': '1'}, body=None, host='')
    """
    if _is_bare(response):
        return Answer(*response)
    response = getattr(response, "response", response) if isinstance(response, Exception) else response
    if isinstance(response, Mapping) and isinstance(response.get("ResponseMetadata"), Mapping):
        return _botocore(response)
    status = getattr(response, "status_code", None) or getattr(response, "status", None)
    headers = getattr(response, "headers", None)
    if isinstance(status, int) and headers is not None:
        # Only what was read before: to read now could block, or take the body from the program.
        members = getattr(response, "__dict__", {})
        body = members.get("_content") or members.get("_body")
        return Answer(status, headers, body or None, _host(response))
    kinds = "a response of httpx, requests, aiohttp or botocore, or (status, headers)"
    raise InvalidArgument("response", response, kinds)


def _is_bare(response: Any) -> bool:
    """Whether it is `(status, headers[, body])`."""
    if not isinstance(response, tuple) or len(response) not in (2, 3) or not isinstance(response[0], int):
        return False
    return isinstance(response[1], Iterable) and not isinstance(response[1], str | bytes)


def _host(response: Any) -> str:
    try:
        return urlsplit(str(getattr(response, "url", ""))).hostname or ""
    except (
        RuntimeError,
        ValueError,
    ):  # a response of httpx that was made without a request; an address that is none
        return ""


def _botocore(response: Mapping[str, Any]) -> Answer:
    said = response["ResponseMetadata"]
    error = response.get("Error")
    body = {"__type": error.get("Code")} if isinstance(error, Mapping) else None
    return Answer(
        int(said.get("HTTPStatusCode") or 0), said.get("HTTPHeaders") or {}, body, "x.amazonaws.com"
    )


def hear(response: Any, profile: str | None, now: float) -> Heard:
    """What the remote says of limits in this response; the profile is that of its host where none is named."""
    answer = answer_of(response)
    named = profile if profile is not None else profile_of(answer.host)
    return Heard(read(answer.status, answer.headers, answer.body, profile=named, now=now), answer.status)
