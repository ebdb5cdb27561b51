# mypy: disable-error-code="attr-defined"
"""A failover by Sentinel under load, of which the promoted replica has really missed grants.

The replica replicates as a user of its own. To switch that user off cuts replication and nothing else: the primary goes
on granting, and what it grants from then on dies with it. Windows here are longer than a failover takes: in a shorter
one everything that could be forgotten is harmless before anybody grants again, and no test could fail.
"""

import contextlib
import time

import pytest
from tests.redis.crew import Crew, wait_until
from tests.redis.load import Load, excess
from tests.redis.servers import eventually

from headway import Bucket, Limiter, Remote, Window
from headway.engines.redis.ledgers import Meta

pytestmark = [pytest.mark.realtime, pytest.mark.slow]

LIMITS = [
    Window(20, per=5),
    Window(20, per=5, remote=Remote(resolution=0, max_transit=0.5)),
    Bucket("4/s", burst=20),
]
REPLICATION = {
    "user": "copier on >secret -@all +psync +replconf +ping",
    "masteruser": "copier",
    "masterauth": "secret",
}
BURST = 15
"""Uses of each crew that are waited for: of twenty permits, some are taken before."""


@pytest.fixture
def loads():
    """loads(url, limit, ...): a crew of two processes for each."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: Load(stack.enter_context(Crew()), *args, workers=2, **options)


def sequence(server, load):
    """How many commands a server knows to have been applied to a crew's ledger."""
    meta = server.client().hget(f"headway:{{{load.crew.name}}}", "m")
    return Meta.read(meta).seq if meta else 0


def stated_quarantine(load, url):
    spec = Limiter(load.limit, name=load.crew.name, engine=url)._spec
    ticks, capped = spec.quarantine(spec.account((None,)))
    assert not capped
    return ticks / 1e6


def uses_since(load, moment):
    return [use for use in load.crew.uses() if use > moment]


def test_grants_that_the_promoted_replica_never_heard_of(make_sentinels, loads):
    """Row "failover to a replica" of docs/fleet.md. With "trust" the same audit does see too much."""
    sentinels = make_sentinels(**REPLICATION)
    url = f"{sentinels.url}?lease=0.5"
    careful = [loads(url, limit, seconds=20) for limit in LIMITS]
    trusting = [loads(url, LIMITS[0], seconds=20, on_ledger_loss="trust")]
    primary, (replica,) = sentinels.primary(), sentinels.replicas()
    everybody = careful + trusting
    for load in everybody:
        load.await_knowledge()
    eventually(
        lambda: all(sequence(replica, load) == sequence(primary, load) > 0 for load in everybody),
        "a replica that knows every ledger",
    )
    primary.client().execute_command("ACL SETUSER copier off")
    primary.client().execute_command("CLIENT KILL USER copier")
    eventually(lambda: primary.client().info("replication")["connected_slaves"] == 0, "the cut")
    cut = time.monotonic()
    for load in everybody:
        load.begin()
    wait_until(lambda: all(len(uses_since(load, cut)) >= BURST for load in everybody), "grants to be lost")
    for load in everybody:
        assert sequence(replica, load) < sequence(primary, load)
    primary.kill()
    killed = time.monotonic()
    eventually(lambda: sentinels.primary() is replica, "a promotion")
    wait_until(
        lambda: all(len(uses_since(load, killed + 1)) >= BURST for load in everybody),
        "grants by the new primary",
    )
    for load in everybody:
        load.halt()
    for load in careful:
        uses = load.end()
        assert excess(load.limit, uses) <= 0
        stated = stated_quarantine(load, url)
        assert load.quarantines
        assert all(abs(told - stated) < 0.01 * stated for told in load.quarantines)
        # From when it was noticed first: not a grant before it is over, and then at once.
        noticed = min(load.noticed)
        assert noticed > killed
        again = min(use for use in uses if use > noticed)
        assert 0.99 * stated < again - noticed < stated + 2
    for load in trusting:
        assert excess(load.limit, load.end()) > 0
        assert not load.quarantines
