"""`on_limit="skip"`: a call may also return None, and a type checker says so; a generator is just empty."""

from collections.abc import AsyncGenerator, Generator
from typing import assert_type

from headway import Limiter, throttle


@throttle("100/minute", on_limit="skip")
def plain(user: str, *, times: int = 1) -> list[str]:
    return [user] * times


@throttle(Limiter("100/minute"), on_limit="skip", timeout=0)
async def coroutine(user: str, *, times: int = 1) -> list[str]:
    return [user] * times


@throttle("100/minute", on_limit="skip")
def pages(count: int) -> Generator[int, str, None]:
    yield count


@throttle("100/minute", on_limit="skip")
async def stream(count: int) -> AsyncGenerator[int, str]:
    yield count


class Client:
    @throttle("100/minute", on_limit="skip")
    def method(self, user: str) -> int:
        return len(user)

    @throttle("100/minute", on_limit="skip")
    async def fetch(self, user: str) -> int:
        return len(user)

    @classmethod
    @throttle("100/minute", on_limit="skip")
    def make(cls, user: str) -> str:
        return user


async def uses() -> None:
    assert_type(plain("ann", times=2), list[str] | None)
    assert_type(await coroutine("ann", times=2), list[str] | None)
    assert_type(pages(1), Generator[int, str, None])
    assert_type(stream(1), AsyncGenerator[int, str])
    assert_type(Client().method("ann"), int | None)
    assert_type(await Client().fetch("ann"), int | None)
    assert_type(Client.make("ann"), str | None)

    plain("ann").append("bob")  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    plain(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await coroutine("ann", 5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Client().method(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
