# mypy: ignore-errors
"""What a user of a generated client does: run with the client's folder on the path, the server's URL and a token.

It is no test by itself: tests/service/test_conformance.py generates the client, and runs this with its Python.
"""

import sys

from headway_client import AuthenticatedClient
from headway_client.api.default import (
    acquire,
    acquire_all,
    event_status,
    limit_status,
    list_limits,
    pause,
    put_limit,
    release,
    renew,
    reset,
    submit_event,
)
from headway_client.models import (
    Acquire,
    AcquireAll,
    AcquireCostType1,
    Denial,
    Event,
    EventStatusAnswer,
    Grant,
    LimitBody,
    Pause,
    ProblemBody,
    Release,
    ReleaseCostType1,
    ReleaseHow,
    Renew,
    Reset,
    SubmissionAnswer,
    Take,
)

url, token = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=token, raise_on_unexpected_status=True)

# A permit, and then none.
granted = acquire.sync(client=client, body=Acquire(limit="api", key="alice"))
assert isinstance(granted, Grant), granted
assert granted.permit is None
assert granted.status.remaining == 0
answer = acquire.sync_detailed(client=client, body=Acquire(limit="api", key="alice"))
assert answer.status_code == 429
denied = answer.parsed
assert isinstance(denied, Denial), denied
assert (denied.granted, denied.reason.value) == (False, "limit")
assert 0 < denied.retry_after <= 60
assert answer.headers["retry-after"]
assert reset.sync(client=client, name="api", body=Reset(key="alice")).done is True
assert isinstance(acquire.sync(client=client, body=Acquire(limit="api", key="alice")), Grant)

# A permit that is held, kept and ended; the id makes the second one the same.
held = acquire.sync(client=client, body=Acquire(limit="calls"), idempotency_key="job-7")
again = acquire.sync(client=client, body=Acquire(limit="calls"), idempotency_key="job-7")
assert held.permit == again.permit
assert renew.sync(client=client, id=held.permit, body=Renew(lease=20.0)).expires_in == 20.0
ended = release.sync(client=client, id=held.permit, body=Release(how=ReleaseHow.COMPLETE))
assert ended.ended.value == "complete"
other = release.sync(client=client, id=held.permit, body=Release(how=ReleaseHow.CANCEL))
assert isinstance(other, ProblemBody)
assert other.type_ == "urn:headway:permit-finished"
assert other.additional_properties["ended"] == "complete"

# Settled for what it was.
cost = AcquireCostType1.from_dict({"tokens": 1200})
estimate = acquire.sync(client=client, body=Acquire(limit="llm", cost=cost, hold=True))
settled = Release(how=ReleaseHow.SETTLE, cost=ReleaseCostType1.from_dict({"tokens": 830}))
assert release.sync(client=client, id=estimate.permit, body=settled).ended.value == "settle"
status = limit_status.sync(client=client, name="llm").status
assert {part.metric: part.remaining for part in status.parts}["tokens"] == 30000 - 830

# Several, all or none.
both = acquire_all.sync(client=client, body=AcquireAll(requests=[Take(limit="calls"), Take(limit="calls")]))
assert len({permit.permit for permit in both.permits}) == 2

# Paused.
assert pause.sync(client=client, name="llm", body=Pause(seconds=30.0)).done is True
paused = acquire.sync(client=client, body=Acquire(limit="llm"))
assert paused.reason.value == "paused", paused
assert pause.sync(client=client, name="llm", body=Pause(seconds=0.0)).done is True

# A limit of its own.
made = put_limit.sync_detailed(client=client, name="search", body=LimitBody(limit="10/s; 3 concurrent"))
assert made.status_code == 201
assert "search" in [limit.name for limit in list_limits.sync(client=client).limits]
wrong = put_limit.sync(client=client, name="search", body=LimitBody(limit="10/fortnight"))
assert wrong.type_ == "urn:headway:bad-limit"

# An event, and its repeat.
first = submit_event.sync(client=client, gate="orders", body=Event(event="order 7", id="e1"))
assert isinstance(first, SubmissionAnswer)
assert first.accepted is True
repeat = submit_event.sync_detailed(client=client, gate="orders", body=Event(event="order 7", id="e2"))
assert (repeat.status_code, repeat.parsed.additional_properties["conflict"]) == (409, "e1")
found = event_status.sync(client=client, gate="orders", id="e1")
assert isinstance(found, EventStatusAnswer)
assert found.status.value == "PUBLISHED", found

# A token that is not known.
stranger = AuthenticatedClient(base_url=url, token="not-the-token-123456")
assert acquire.sync(client=stranger, body=Acquire(limit="api")).type_ == "urn:headway:no-token"
sys.stdout.write("all as described\n")
