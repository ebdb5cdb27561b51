"""FastAPI finds out by looking what it may call in the loop, what in a thread, and which parameters there are.

The annotations are strings here, as in many programs, so they must be found in the right module too.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import fastapi
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from headway import Limiter, RateLimited, throttle
from waiting import NEVER

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that it would rather have another httpx
    from fastapi.testclient import TestClient

pytestmark = pytest.mark.both_forms

app = FastAPI()
few = Limiter("2/hour", timeout=0)


def limiter_of(function: Any) -> Limiter:
    limiter: Limiter = function.limiter
    return limiter


class Order(BaseModel):
    item: str
    count: int = 1


def where() -> str:
    return "loop" if asyncio._get_running_loop() is not None else "thread"


@throttle("1000/s")
def user(name: str = "guest") -> str:
    return f"{name} found in a {where()}"


@throttle("1000/s")
async def user_async(name: str = "guest") -> str:
    return f"{name} found in the {where()}"


@throttle("2 concurrent")
def session(request: Request) -> Iterator[str]:
    yield f"session opened in a {where()}"
    request.app.state.closed = where()


@throttle("2 concurrent")
async def session_async() -> AsyncIterator[str]:
    yield f"session opened in the {where()}"


class Service:
    @throttle("1000/s")
    def method(self, number: int) -> dict[str, object]:
        return {"number": number, "where": where()}

    @throttle("1000/s")
    async def method_async(self, number: int) -> dict[str, object]:
        return {"number": number, "where": where()}


@app.get("/plain/{number}")
@throttle("1000/s")
def plain(number: int, scale: float = 1.0) -> dict[str, object]:
    """What is shown in the docs."""
    return {"number": number * scale, "where": where()}


@app.get("/async/{number}")
@throttle("1000/s", key=lambda number, scale=1.0: number)
async def plain_async(number: int, scale: float = 1.0) -> dict[str, object]:
    return {"number": number * scale, "where": where()}


@app.post("/order")
@throttle("1000/s", key=lambda order, buyer: buyer)
def order(order: Order, buyer: Annotated[str, Depends(user)]) -> Order:
    return Order(item=f"{order.item} for {buyer}", count=order.count)


@app.get("/dependent")
@throttle("1000/s")
async def dependent(
    a: Annotated[str, Depends(user)],
    b: Annotated[str, Depends(user_async)],
    c: Annotated[str, Depends(session)],
    d: Annotated[str, Depends(session_async)],
) -> list[str]:
    return [a, b, c, d]


@app.get("/few")
@few
def rarely() -> str:
    return "here"


@app.get("/few-async")
@throttle(few, timeout=0, on_limit="skip")
async def rarely_async() -> str | None:
    return "here"


@app.get("/slow")
@throttle("5 concurrent")
def slow() -> str:
    time.sleep(0.05)
    return where()


@throttle("1000/s")
async def lines() -> AsyncIterator[str]:
    for number in range(3):
        yield f"{number}\n"


@app.get("/stream")
async def stream() -> StreamingResponse:
    return StreamingResponse(lines())


app.get("/method/{number}")(Service().method)
app.get("/method-async/{number}")(Service().method_async)


@app.exception_handler(RateLimited)
def too_many(request: Request, error: RateLimited) -> fastapi.Response:
    return fastapi.responses.JSONResponse({"detail": str(error)}, 429, headers=error.status.headers())


@app.get("/failing")
@throttle("5 concurrent")
def failing() -> None:
    raise HTTPException(418, "teapot")


@pytest.fixture(scope="module")
def client():
    with TestClient(app) as client:
        yield client


def test_def_runs_in_a_thread_and_async_def_in_the_loop(client):
    assert client.get("/plain/5?scale=2").json() == {"number": 10, "where": "thread"}
    assert client.get("/async/5?scale=2").json() == {"number": 10, "where": "loop"}
    assert client.get("/method/5").json() == {"number": 5, "where": "thread"}
    assert client.get("/method-async/5").json() == {"number": 5, "where": "loop"}
    assert limiter_of(plain_async).peek("5").remaining == 999


def test_parameters_are_validated(client):
    answer = client.get("/plain/five")
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["path", "number"]
    assert client.post("/order", json={"count": 1}).status_code == 422


def test_bodies_and_dependencies(client):
    answer = client.post("/order?name=ann", json={"item": "pen", "count": 2}).json()
    assert answer == {"item": "pen for ann found in a thread", "count": 2}
    assert client.get("/dependent?name=bob").json() == [
        "bob found in a thread",
        "bob found in the loop",
        "session opened in a thread",
        "session opened in the loop",
    ]
    assert app.state.closed == "thread"
    for dependency in (session, session_async):
        assert limiter_of(dependency).peek().in_flight == 0
        assert limiter_of(dependency).stats().completed == 1


def test_the_schema_is_that_of_the_function(client):
    paths = client.get("/openapi.json").json()["paths"]
    operation = paths["/plain/{number}"]["get"]
    assert operation["description"] == "What is shown in the docs."
    assert [(p["name"], p["schema"]["type"]) for p in operation["parameters"]] == [
        ("number", "integer"),
        ("scale", "number"),
    ]
    assert "requestBody" in paths["/order"]["post"]
    assert [p["name"] for p in paths["/method/{number}"]["get"]["parameters"]] == ["number"]


def test_denials_become_answers(client):
    assert [client.get("/few").status_code for _ in range(3)] == [200, 200, 429]
    answer = client.get("/few")
    assert "2/hour" in answer.json()["detail"]
    assert int(answer.headers["Retry-After"]) > 3000
    assert client.get("/few-async").json() is None


def test_errors_of_the_framework_end_the_permit(client):
    assert client.get("/failing").status_code == 418
    assert limiter_of(failing).peek().in_flight == 0


def test_streams(client):
    assert client.get("/stream").text == "0\n1\n2\n"
    assert limiter_of(lines).stats().completed == 1


def test_many_at_once(client):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(client.get("/slow").json())) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(NEVER)
    assert answers == ["thread"] * 10
