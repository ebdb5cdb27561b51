"""De-duplicate webhooks: a provider delivers again until it is acknowledged in time, and so now and then twice.

    pip install '.[embedded,server]'
    python examples/webhooks.py
    curl -H 'Content-Type: application/json' -d '{"id": "evt_1", "order": 7}' http://127.0.0.1:8000/webhooks

The second time it says that the order was handled before. That is still so after a restart, and for any number of these
processes on one machine; for several machines give a server: HEADWAY_ENGINE=redis://cache.

A repeat is acknowledged like the first delivery: otherwise the provider would go on. The promise is that an order is
handled at most once. If `ship` fails, a later delivery is still a repeat: hand the order to something that retries by
itself, such as a queue of jobs.
"""

import os
import sys
import tempfile
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from headway import EngineUnavailable, Once

ENGINE = os.environ.get("HEADWAY_ENGINE", f"embedded://{Path(tempfile.gettempdir()) / 'headway-webhooks'}")

gate = Once("1h", name="webhooks", engine=ENGINE)
shipped: list[int] = []


@gate.guard(key=lambda delivery: delivery["id"])
async def ship(delivery):
    """Runs once for each id of the provider."""
    shipped.append(delivery["order"])
    return "shipped"


async def webhook(request: Request) -> JSONResponse:
    delivery = await request.json()
    try:
        done = await ship(delivery)
    except EngineUnavailable:
        # Not acknowledged: the provider delivers it again.
        return JSONResponse({"error": "try again"}, 503, {"Retry-After": "1"})
    return JSONResponse({"order": delivery["order"], "result": done or "handled before"})


async def orders(_: Request) -> JSONResponse:
    return JSONResponse(shipped)


app = Starlette(routes=[Route("/webhooks", webhook, methods=["POST"]), Route("/orders", orders)])

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000, log_level="warning")
