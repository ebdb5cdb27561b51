"""Gates over STOMP on WebSocket: `stomp_app`, an ASGI app.

    app            `stomp_app`: its options, and which scopes it serves. What is on the wire is written down there
    connection     one peer: frames in and out, time, and the bound on what waits for it
    feed           one subscription per gate and event loop, for all its subscribers; how one joins without a gap
    wire           destinations, bodies and message ids to text and back

The protocol itself is below, in `headway.stomp`, without I/O. Nothing here is imported by `import headway`.
"""

from headway.once.stomp.app import stomp_app

__all__ = ["stomp_app"]
