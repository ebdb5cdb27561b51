# mypy: disable-error-code="attr-defined, union-attr"
"""A failover under load, of which the promoted replica has really missed grants: by Sentinel, and in a Cluster.

The replica replicates as a user of its own. To switch that user off cuts replication and nothing else: the primary goes
on granting, and what it grants from then on dies with it. Windows here are longer than a failover takes: in a shorter
one everything that could be forgotten is harmless before a server grants again, and no test could fail.
"""

import contextlib
import itertools
import time

import pytest
from tests.redis.load import Load, excess
from tests.redis.servers import HOST, eventually, in_step
from tests.redis.workers import Crew

from headway import Bucket, Limiter, Remote, Window
from headway.engines.redis.script.codec import Meta
from waiting import SOON, wait_until

pytestmark = [pytest.mark.realtime, pytest.mark.slow]

LIMITS = [
    Window(20, per=5, remote=False),
    Window(20, per=5, remote=Remote(resolution=0, max_transit=0.5)),
    Bucket("4/s", burst=20),
]
REPLICATION = {
    "user": "copier on >secret -@all +psync +replconf +ping",
    "masteruser": "copier",
    "masterauth": "secret",
    "repl_diskless_sync_delay": 0,
}
BURST = 15
"""Uses of each crew that are waited for: of twenty permits, some are taken before."""


@pytest.fixture
def crews():
    """crews(fits): a crew whose name fits."""
    with contextlib.ExitStack() as stack:

        def crew(fits=lambda name: True):
            crew = stack.enter_context(Crew())
            crew.name = next(name for n in itertools.count() if fits(name := f"{crew.name}-{n}"))
            return crew

        yield crew


def cut_replication(primary):
    """Its replicas hear no more of it, and it goes on."""
    client = primary.client()
    client.execute_command("ACL SETUSER copier off")
    client.execute_command("CLIENT KILL USER copier")
    eventually(lambda: client.info("replication")["connected_slaves"] == 0, "the cut")


def sequence(client, load):
    """How many commands a server knows to have been applied to a crew's ledger."""
    meta = client.hget(f"headway:{{{load.crew.name}}}", "m")
    return Meta.read(meta).seq if meta else 0


def stated_quarantine(load, url):
    registry = Limiter(load.limit, name=load.crew.name, engine=url)._shared.ledgers.registry
    ticks, capped = registry.quarantine(registry.ledger((None,)))
    assert not capped
    return ticks / 1e6


def uses_since(load, moment):
    return [use for use in load.crew.uses() if use > moment]


def check_failover(url, primary, replica, crew):
    """However it is promoted: what the replica has missed is not granted twice, and with "trust" it is.

    When a loss is noticed, nothing is granted until the stated quarantine is over, and then at once.
    """
    url = f"{url}?lease=0.5"
    careful = [Load(crew(), url, limit, workers=2) for limit in LIMITS]
    trusting = Load(crew(), url, LIMITS[0], workers=2, on_ledger_loss="trust")
    loads = [*careful, trusting]
    for load in loads:
        load.await_knowledge()
    there, copy = primary.client(), replica.client(single_connection_client=True)
    if copy.info("cluster")["cluster_enabled"]:
        copy.execute_command("READONLY")
    eventually(
        lambda: all(sequence(copy, load) == sequence(there, load) > 0 for load in loads),
        "a replica that knows every ledger",
    )
    cut_replication(primary)
    cut = time.monotonic()
    for load in loads:
        load.begin()
    wait_until(lambda: all(len(uses_since(load, cut)) >= BURST for load in loads), "grants to be lost")
    for load in loads:
        assert sequence(copy, load) < sequence(there, load)
    primary.kill()
    killed = time.monotonic()
    eventually(lambda: copy.info("replication")["role"] == "master", "a promotion")
    wait_until(
        lambda: all(len(uses_since(load, killed + 1)) >= BURST for load in loads),
        "grants by the new primary",
    )
    for load in loads:
        load.stop()
    for load in careful:
        uses = load.end()
        assert excess(load.limit, uses) <= 0
        stated = stated_quarantine(load, url)
        assert load.quarantines
        assert all(abs(told - stated) < 0.01 * stated for told in load.quarantines)
        noticed = min(load.noticed)
        assert noticed > killed
        # The others hear of it a moment later, and may use until then what they had been promised.
        again = min(use for use in uses if use > noticed + 0.1)
        assert 0.99 * stated < again - noticed < stated + SOON
    assert excess(trusting.limit, trusting.end()) > 0
    assert not trusting.quarantines


def test_a_replica_that_sentinel_promotes_has_missed_grants(make_sentinels, crews):
    sentinels = make_sentinels(**REPLICATION)
    check_failover(sentinels.url, sentinels.primary(), sentinels.replicas()[0], crews)


def test_a_replica_that_a_cluster_promotes_has_missed_grants(make_cluster, make_server, crews):
    cluster = make_cluster(**REPLICATION)
    primary = cluster.servers[0]
    replica = make_server(
        cluster_enabled="yes", cluster_node_timeout=2000, cluster_announce_ip=HOST, **REPLICATION
    )
    client = replica.client()
    client.execute_command("CLUSTER MEET", HOST, primary.port, primary.bus_port)
    name = primary.client().execute_command("CLUSTER MYID").decode()
    eventually(lambda: client.execute_command("CLUSTER REPLICATE", name), "a replica that knows its primary")
    in_step(replica)
    check_failover(
        cluster.url, primary, replica, lambda: crews(lambda name: cluster.owner(f"{{{name}}}") is primary)
    )
