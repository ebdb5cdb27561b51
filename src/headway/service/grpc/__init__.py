"""gRPC for the service: calls with one message each way.

    http2       a connection on libnghttp2, without I/O (compiled only)
    server      connections on an event loop, and the handlers that answer
    status      codes, and the error that carries one

Where `http2` cannot be used, the service's gRPC runs on grpcio.
"""


def on_nghttp2() -> bool:
    """Whether gRPC runs on libnghttp2 here: headway was compiled, and the library is there."""
    try:
        from headway.service.grpc import http2
    except ImportError:
        return False
    return http2.available()
