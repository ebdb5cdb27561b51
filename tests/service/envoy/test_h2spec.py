"""h2spec against the gRPC port: how HTTP/2 is spoken to peers that keep to the specification, or break it.

python -m tests.service.envoy.test_h2spec      prints what h2spec says, also of what fails
"""

import asyncio
import re
import sys

import pytest

from headway.service.envoy import grpc_server
from headway.service.grpc import on_nghttp2
from service.envoy.asking import service_of
from service.envoy.peers import H2SPEC, INSTALL, needs_peer

BAR = 137
"""Of 145: as many as tonic passes."""
RULES = "  - {key: user, limit: 5/minute}"


async def passed():
    """How many tests it passes, and what h2spec says."""
    server = await grpc_server.start(service_of(RULES), transport="nghttp2")
    try:
        h2spec = await asyncio.create_subprocess_exec(
            H2SPEC, "generic", "hpack", "http2", "-h", "127.0.0.1", "-p", str(server.port), "-o", "10",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await h2spec.communicate()
    finally:
        await server.stop(0)
    text = out.decode(errors="replace")
    found = re.search(r"(\d+) tests, (\d+) passed", text)
    assert found, text
    assert int(found[1]) == 145
    return int(found[2]), text


@needs_peer(H2SPEC, "h2spec")
@pytest.mark.slow
@pytest.mark.skipif(
    not on_nghttp2(), reason="needs the compiled form and libnghttp2: apt-get install libnghttp2-14"
)
def test_http2_is_spoken_as_h2spec_wants_it():
    count, text = asyncio.run(passed())
    assert count >= BAR, text[text.rfind("Failures:") :]


if __name__ == "__main__":
    if H2SPEC is None:
        sys.exit(f"h2spec is not here: {INSTALL['h2spec']}")
    sys.stdout.write(asyncio.run(passed())[1])
