"""A primary with replicas, watched by a sentinel."""

from __future__ import annotations

import contextlib

from tests.redis.servers.loopback import HOST, Closing, eventually
from tests.redis.servers.server import Server


def in_step(replica):
    """Wait until a replica has all that its primary had."""
    with contextlib.closing(replica.client()) as client:
        eventually(lambda: client.info("replication").get("master_link_status") == "up", "a replica in step")


class Sentinels(Closing):
    """A primary, its replicas, and one sentinel that fails over quickly and alone."""

    def __init__(self, program="valkey", *, replicas=1, name="headway", **options):
        self.name = name
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            options = {"repl_diskless_sync_delay": 0, **options}
            first = self._stack.enter_context(Server(program, **options))
            self.servers = [first]
            for _ in range(replicas):
                copy = Server(program, replicaof=f"{HOST} {first.port}", **options)
                self.servers.append(self._stack.enter_context(copy))
            for copy in self.servers[1:]:
                in_step(copy)
            # Started last: it asks a primary for its replicas at once, and then only every 10 s.
            watch = [
                f"monitor {name} {HOST} {first.port} 1",
                # Below about a second, it takes the one that it has just promoted for dead: it connects anew then,
                # and does so only once a second.
                f"down-after-milliseconds {name} 1500",
                f"failover-timeout {name} 2000",
            ]
            self.sentinel = self._stack.enter_context(Server(program, watch=watch))
            self._asked = self.sentinel.client(decode_responses=True)
            eventually(self._knows_all, "a sentinel that knows the replicas")
            undo.pop_all()

    @property
    def url(self):
        return f"redis+sentinel://{HOST}:{self.sentinel.port}/{self.name}"

    def primary(self):
        """The server that the sentinel names."""
        _, port = self._asked.sentinel_get_master_addr_by_name(self.name)
        return next(server for server in self.servers if server.port == int(port))

    def replicas(self):
        primary = self.primary()
        return [server for server in self.servers if server is not primary]

    def failover(self, *, kill=True):
        """Kill the primary (or only ask for a change), wait for the promotion, return the new primary."""
        old = self.primary()
        if kill:
            old.kill()
        else:
            eventually(lambda: self._asked.execute_command("SENTINEL FAILOVER", self.name), "INPROG to pass")
        return eventually(lambda: self._promoted(old), "a promotion")

    def rejoin(self, server):
        """Make an old primary a replica of the new one, as the sentinel would do by itself in about 20 s."""
        if not server.alive:
            server.restart()
        server.client().replicaof(HOST, self.primary().port)
        in_step(server)

    def close(self):
        self._stack.close()

    def _promoted(self, old):
        new = self.primary()
        with contextlib.closing(new.client()) as client:
            return new if new is not old and client.info("replication")["role"] == "master" else None

    def _knows_all(self):
        known = self._asked.sentinel_slaves(self.name)
        return len(known) == len(self.servers) - 1 and all(one["flags"] == "slave" for one in known)
