"""What a type checker sees of a gate."""

from datetime import timedelta
from typing import assert_type

from headway import Change, EventStatus, Once, Snapshot, Submission

gate = Once(timedelta(minutes=5), "strict", name="orders", retention=60, max_pending=10)
Once("5min", "twice")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def blocking() -> None:
    assert_type(gate.submit("a", id="1", value="v"), Submission)
    assert_type(gate.submit("a").due, float | None)
    assert_type(gate.status("1"), EventStatus | None)
    assert_type(gate.changes(since=3), list[Change])
    assert_type(gate.snapshot(), Snapshot)
    for found in gate.subscribe(gate.snapshot()):
        assert_type(found, Change | Snapshot)
    gate.submit(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def suspending() -> None:
    assert_type(await gate.submit_async("a"), Submission)
    assert_type(await gate.changes_async(), list[Change])
    async for found in gate.subscribe():
        assert_type(found, Change | Snapshot)


@gate.guard(key=lambda order: f"order {order}")
def handle(order: int) -> str:
    return str(order)


@gate.guard(on_repeat="raise")
async def nightly() -> int:
    return 1


assert_type(handle(7), str | None)


async def guarded() -> None:
    assert_type(await nightly(), int)
