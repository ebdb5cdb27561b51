"""Servers that share the slots of a cluster."""

from __future__ import annotations

import contextlib

import redis
from redis.crc import key_slot
from tests.redis.servers.loopback import HOST, Closing, eventually
from tests.redis.servers.server import Server


class Cluster(Closing):
    """Three primaries, a third of the slots each, no replicas."""

    def __init__(self, program="valkey", *, size=3, **options):
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            options = {"cluster_enabled": "yes", "cluster_node_timeout": 2000, **options}
            options["cluster_announce_ip"] = HOST
            self.servers = [self._stack.enter_context(Server(program, **options)) for _ in range(size)]
            clients = [server.client() for server in self.servers]
            for turn, client in enumerate(clients):
                first, beyond = 16384 * turn // size, 16384 * (turn + 1) // size
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, beyond - 1)
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", turn + 1)
            for server in self.servers[1:]:
                clients[0].execute_command("CLUSTER MEET", HOST, server.port, server.bus_port)
            eventually(lambda: all(map(self._agrees, clients)), "a cluster that agrees")
            undo.pop_all()

    @property
    def url(self):
        return f"redis+cluster://{HOST}:{self.servers[0].port}"

    def client(self, **options):
        """A cluster client; the caller closes it."""
        return redis.RedisCluster(host=HOST, port=self.servers[0].port, **options)

    def owner(self, key):
        """The server that keeps a key."""
        slot, size = key_slot(key.encode()), len(self.servers)
        return next(self.servers[turn] for turn in range(size) if slot < 16384 * (turn + 1) // size)

    def clean(self):
        for server in self.servers:
            server.clean()
        clients = [server.client() for server in self.servers]
        eventually(lambda: all(map(self._agrees, clients)), "a cluster that agrees again")

    def close(self):
        self._stack.close()

    def _agrees(self, client):
        info = client.cluster("INFO")
        known = (info["cluster_state"], info["cluster_known_nodes"], info["cluster_slots_ok"])
        return known == ("ok", str(len(self.servers)), "16384")
