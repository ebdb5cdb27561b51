"""Real servers for the tests: alone, watched by a sentinel, as a cluster, and behind a wire that misbehaves.

Nothing here is a fake, because what the engine has to survive is what real servers do: answers that come after
the deadline, a replica that knows less than its primary, a socket that dies after the script ran. So a test gets
processes of its own, on loopback, and does to them what the world would do.

Three rules keep the machine clean. Every process is ended by its id, by the object that started it, with a signal
that also ends a stopped one. It runs under `setpriv --pdeathsig` where there is one, so that it goes even if pytest is
killed (the kernel ties it to the *thread* that started it: start servers in the main thread). And ports are taken
from below the range for outgoing connections: a client that tries a dead port of that range again and again is
one day given the same port as its own end, and then talks to itself.

    with Server() as server, Proxy(server) as proxy:
        proxy.drop_answers(1, only=b"EVALSHA")
        client = server.client(port=proxy.port)

Import them as `from tests.redis.servers import Server`: the folder above has the name of the client library, and must
never get an `__init__.py`.
"""

from tests.redis.servers.cluster import Cluster
from tests.redis.servers.loopback import HOST, PORTS, eventually, free_port, program_path
from tests.redis.servers.proxy import Proxy
from tests.redis.servers.sentinels import Sentinels, in_step
from tests.redis.servers.server import Server, make_certificate

__all__ = [
    "HOST",
    "PORTS",
    "Cluster",
    "Proxy",
    "Sentinels",
    "Server",
    "eventually",
    "free_port",
    "in_step",
    "make_certificate",
    "program_path",
]
