"""A FastAPI application with tiers: what a plan may do, what a route costs, and bans for those that go on.

    python examples/fastapi_tiers.py            shows what three clients are answered
    uvicorn examples.fastapi_tiers:app          serves it; with several workers, name an engine below

Every user has a plan. The plan's limit is over all routes together, a report costs ten requests, and a login counts
only if it failed. For several workers or machines the limits need one place: `ENGINE = {"engine": "redis://db"}`.
"""

import asyncio
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, HTTPException, Request

from headway.integrations.fastapi import RateLimit, install

PLANS = {"free": "20/minute", "pro": "60/minute; 1000/hour", "internal": None}
USERS = {"key-ann": ("ann", "free"), "key-bob": ("bob", "pro"), "key-job": ("job", "internal")}
ENGINE: dict[str, Any] = {}


def user(request: Request) -> str:
    """The user, by the key that the request has; dependencies that come later find the plan in its state."""
    name, plan = USERS.get(request.headers.get("x-api-key", ""), ("", ""))
    if not name:
        raise HTTPException(401, "an x-api-key is missing, or is not known")
    request.state.user, request.state.plan = name, plan
    return name


User = Annotated[str, Depends(user)]
by_plan = RateLimit(
    PLANS,
    tier=lambda request: request.state.plan,
    key=lambda request: request.state.user,
    cost=lambda request: 10 if request.url.path == "/report" else 1,
    ban=("30/minute", 300),
    name="plan",
    **ENGINE,
)
logins = RateLimit("3/minute", deduct_when=lambda status: status == 401, name="logins", **ENGINE)

app = FastAPI(title="Tiers")
install(app)


@app.get("/items", dependencies=[Depends(user), Depends(by_plan)])
async def items() -> list[str]:
    return ["one", "two"]


@app.get("/report", dependencies=[Depends(user), Depends(by_plan)])
async def report(name: User) -> dict[str, str]:
    return {"for": name}


@app.post("/login", dependencies=[Depends(logins)])
async def login(password: str) -> dict[str, bool]:
    if password != "open sesame":
        raise HTTPException(401, "wrong password")
    return {"ok": True}


async def show() -> None:
    """What each kind of client is answered."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client:

        async def ask(what: str, times: int, path: str, method: str = "GET", **headers: str) -> None:
            replies = [await client.request(method, path, headers=headers) for _ in range(times)]
            statuses = [reply.status_code for reply in replies]
            counts = ", ".join(f"{statuses.count(status)} x {status}" for status in dict.fromkeys(statuses))
            wait = replies[-1].headers.get("retry-after")
            print(f"{what:24} {counts}" + (f"; come back in {wait} s" if wait else ""))

        await ask("free:", 25, "/items", **{"x-api-key": "key-ann"})
        await ask("pro, reports:", 8, "/report", **{"x-api-key": "key-bob"})
        await ask("internal:", 100, "/items", **{"x-api-key": "key-job"})
        await ask("logins that fail:", 5, "/login?password=guess", "POST")


if __name__ == "__main__":
    asyncio.run(show())
