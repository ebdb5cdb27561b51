"""gRPC for the service: calls with one message each way.

http2       a connection on libnghttp2, without I/O (compiled only)
server      connections on an event loop, and the handlers that answer
status      codes, and the error that carries one
"""
