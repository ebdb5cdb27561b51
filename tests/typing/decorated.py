"""What a type checker sees of a throttled function: the function, unchanged."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVar, assert_type

import headway
from headway import throttle

T = TypeVar("T")


@throttle("100/minute")
def plain(user: str, *, times: int = 1) -> list[str]:
    return [user] * times


@throttle("100/minute")
async def coroutine(user: str, *, times: int = 1) -> list[str]:
    return [user] * times


@throttle("100/minute")
def pages(count: int) -> Generator[int, str, bytes]:
    said = yield count
    return said.encode()


@throttle("100/minute")
def iterated(count: int) -> Iterator[int]:
    yield count


@throttle("100/minute")
async def stream(count: int) -> AsyncGenerator[int, str]:
    said = yield count
    yield len(said)


@throttle("100/minute")
async def async_iterated(count: int) -> AsyncIterator[int]:
    yield count


@throttle("100/minute")
def generic(value: T) -> T:
    return value


class Client:
    @throttle("100/minute", key=lambda self, user: user)
    def method(self, user: str) -> int:
        return len(user)

    @classmethod
    @throttle("100/minute")
    def make(cls, user: str) -> Client:
        return cls()

    @staticmethod
    @throttle("100/minute")
    def static(user: str) -> int:
        return len(user)

    @throttle("100/minute")
    async def fetch(self, user: str) -> int:
        return len(user)

    @property
    @throttle("100/minute")
    def name(self) -> str:
        return ""


async def uses() -> None:
    assert_type(plain("ann", times=2), list[str])
    assert_type(await coroutine("ann", times=2), list[str])
    assert_type(pages(3), Generator[int, str, bytes])
    assert_type(iterated(3), Iterator[int])
    assert_type(stream(3), AsyncGenerator[int, str])
    assert_type(async_iterated(3), AsyncIterator[int])
    assert_type(generic(3), int)
    assert_type(generic("3"), str)
    client = Client()
    assert_type(client.method("ann"), int)
    assert_type(Client.make("ann"), Client)
    assert_type(Client.static("ann"), int)
    assert_type(await client.fetch("ann"), int)
    assert_type(client.name, str)
    assert_type(throttle("5/s")(len)("ab"), int)
    assert_type(throttle("5/s")(str.upper)("ab"), str)

    # What would not be right for the function is not right for the throttled one.
    plain(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain("ann", time=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    plain()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await coroutine(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.method(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.method(client, "ann")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]


def taking(function: Callable[[str], int], later: Callable[[str], Coroutine[Any, Any, int]]) -> None:
    """Throttled functions are accepted where functions are."""


taking(Client().method, Client().fetch)


@throttle(headway.Limiter("100/minute"), timeout=0, answered=ValueError, not_sent=(OSError, KeyError))
def by_limiter(user: str) -> int:
    return len(user)


@headway.Limiter("100/minute")
def by_limiter_alone(user: str) -> int:
    return len(user)


@headway.Limiter("100/minute")
async def by_limiter_later(user: str) -> int:
    return len(user)


@throttle(
    {"requests": "500/minute", "tokens": headway.Bucket("30000/minute", burst=100)},
    key=lambda host, tokens: {"requests": host},
    cost=lambda host, tokens: {"tokens": tokens},
    settle=lambda used: {"tokens": used},
    answered=lambda error: hasattr(error, "status"),
    max_waiting=10,
    remote=headway.Remote(max_transit=5),
)
def metered(host: str, tokens: int) -> int:
    return tokens


assert_type(by_limiter("ann"), int)
assert_type(by_limiter_alone("ann"), int)
by_limiter_alone(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
taking(by_limiter_alone, by_limiter_later)
assert_type(metered("there", 5), int)

throttle("5/s")(5)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
throttle(5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
throttle("5/s", on_limit="drop")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
throttle("5/s", key=5.5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]

# The limiter of a throttled function is typed, without its type becoming another than the function's.
assert_type(headway.limiter_of(plain), headway.Limiter)
assert_type(headway.limiter_of(Client().method), headway.Limiter)
assert_type(headway.limiter_of(Client.make).peek().remaining, int)
throttle("5/s", key=5)
