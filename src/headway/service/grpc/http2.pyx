# cython: language_level=3, binding=False
"""One HTTP/2 connection of a gRPC server, on libnghttp2: bytes in, whole requests out; answers in, bytes out.

    connection = Connection()
    for stream, path, message, timeout_ns in connection.receive(data):     # bytes came
        connection.answer(stream, reply)                                   # or connection.fail(stream, code, reason)
    write(connection.take())                                               # all frames of this turn, in one piece

It does no I/O and knows no clock, so the same object runs under asyncio, under uvloop and in a test. HTTP/2 itself (frames,
HPACK, flow control, settings, priorities, the order of frames) is libnghttp2's, which nearly every Linux has because curl
needs it. It is loaded when the first connection is made, by its name, so that nothing is linked and no header file is
needed to build this; `available()` says whether that worked. Without it the service runs on grpcio (`portable`).

A request that can be answered at once is, without leaving this file: `at_once` is a path and a function of its message,
which answers None for what the program has to see.

What is served is the part of gRPC that a rate limit service needs: calls with one message each way.

    what comes                                          the answer
    POST, application/grpc, one whole message           for the program, with the path and `grpc-timeout`
    the same, compressed                                UNIMPLEMENTED; `grpc-accept-encoding: identity` says what is read
    no message, two of them, or a part of one           INTERNAL
    a message above `max_message`                       RESOURCE_EXHAUSTED, as soon as that is certain
    a request that is no gRPC                           HTTP 405 or 415, with a sentence that says what this port is
    headers above `max_headers` bytes                   the stream is reset
    many streams that the peer resets unanswered        ENHANCE_YOUR_CALM, and the connection ends
    what is no HTTP/2                                   GOAWAY where that can be said, and the connection ends

**Why a frame of Python's objects is not made for every frame of HTTP/2.** A request is three frames in and an answer three
frames out. The callbacks of libnghttp2 below keep what matters in one `Stream`, and the program sees a tuple of a whole
request. That is what makes it ten times as fast as a server that gives every frame to Python.

**Memory.** A stream keeps its message, up to `max_message`; libnghttp2 lets a peer have `max_streams` at a time. A peer that
does not read is the caller's to deal with: it stops calling `take` and stops reading, and then nothing grows here.

No exception leaves a callback: the first one is kept and raised from `receive` or `take`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <sys/types.h>
    #ifdef _WIN32
      #define NG_OPEN() NULL
      #define NG_FIND(library, name) NULL
      typedef ptrdiff_t ng_ssize;
    #else
      #include <dlfcn.h>
      #ifdef __APPLE__
        #define NG_OPEN() dlopen("libnghttp2.14.dylib", RTLD_NOW | RTLD_LOCAL)
      #else
        #define NG_OPEN() dlopen("libnghttp2.so.14", RTLD_NOW | RTLD_LOCAL)
      #endif
      #define NG_FIND(library, name) dlsym(library, name)
      typedef ssize_t ng_ssize;
    #endif

    /* Of libnghttp2's interface, version 14 of its ABI: what is used here. */
    typedef struct nghttp2_session ng_session;
    typedef struct nghttp2_session_callbacks ng_callbacks;
    typedef struct { uint8_t *name, *value; size_t namelen, valuelen; uint8_t flags; } ng_nv;
    typedef struct { size_t length; int32_t stream_id; uint8_t type, flags, reserved; } ng_frame;
    typedef struct { int32_t id; uint32_t value; } ng_setting;
    typedef union { int fd; void *ptr; } ng_source;
    typedef ng_ssize (*ng_read)(ng_session *, int32_t, uint8_t *, size_t, uint32_t *, ng_source *, void *);
    typedef struct { ng_source source; ng_read read; } ng_provider;
    typedef int (*ng_on_frame)(ng_session *, const ng_frame *, void *);
    typedef int (*ng_on_header)(ng_session *, const ng_frame *, const uint8_t *, size_t, const uint8_t *, size_t,
                                uint8_t, void *);
    typedef int (*ng_on_data)(ng_session *, uint8_t, int32_t, const uint8_t *, size_t, void *);
    typedef int (*ng_on_close)(ng_session *, int32_t, uint32_t, void *);

    #define NG_FUNCTIONS(of) \\
      of(int, session_callbacks_new, (ng_callbacks **)) \\
      of(void, session_callbacks_set_on_begin_headers_callback, (ng_callbacks *, ng_on_frame)) \\
      of(void, session_callbacks_set_on_header_callback, (ng_callbacks *, ng_on_header)) \\
      of(void, session_callbacks_set_on_data_chunk_recv_callback, (ng_callbacks *, ng_on_data)) \\
      of(void, session_callbacks_set_on_frame_recv_callback, (ng_callbacks *, ng_on_frame)) \\
      of(void, session_callbacks_set_on_frame_send_callback, (ng_callbacks *, ng_on_frame)) \\
      of(void, session_callbacks_set_on_stream_close_callback, (ng_callbacks *, ng_on_close)) \\
      of(int, session_server_new, (ng_session **, const ng_callbacks *, void *)) \\
      of(void, session_del, (ng_session *)) \\
      of(ng_ssize, session_mem_recv, (ng_session *, const uint8_t *, size_t)) \\
      of(ng_ssize, session_mem_send, (ng_session *, const uint8_t **)) \\
      of(int, session_want_read, (ng_session *)) \\
      of(int, session_want_write, (ng_session *)) \\
      of(int, session_terminate_session, (ng_session *, uint32_t)) \\
      of(int, session_set_local_window_size, (ng_session *, uint8_t, int32_t, int32_t)) \\
      of(int, submit_settings, (ng_session *, uint8_t, const ng_setting *, size_t)) \\
      of(int, submit_response, (ng_session *, int32_t, const ng_nv *, size_t, const ng_provider *)) \\
      of(int, submit_trailer, (ng_session *, int32_t, const ng_nv *, size_t)) \\
      of(int, submit_rst_stream, (ng_session *, uint8_t, int32_t, uint32_t)) \\
      of(int, submit_shutdown_notice, (ng_session *)) \\
      of(int, submit_goaway, (ng_session *, uint8_t, int32_t, uint32_t, const uint8_t *, size_t)) \\
      of(int32_t, session_get_last_proc_stream_id, (ng_session *)) \\
      of(const char *, strerror, (int))

    #define NG_POINTER(result, name, arguments) static result (*ng_##name) arguments;
    NG_FUNCTIONS(NG_POINTER)

    /* Find them all; the name of the first one that is missing, or NULL. */
    static const char *ng_load(void) {
        void *library = NG_OPEN();
        if (library == NULL) return "the library itself";
    #define NG_LOOK_UP(result, name, arguments) \\
        if (!(ng_##name = (result (*) arguments)NG_FIND(library, "nghttp2_" #name))) return "nghttp2_" #name;
        NG_FUNCTIONS(NG_LOOK_UP)
        return NULL;
    }
    """
    ctypedef struct ng_session
    ctypedef struct ng_callbacks
    ctypedef Py_ssize_t ng_ssize
    ctypedef struct ng_nv:
        uint8_t *name
        uint8_t *value
        size_t namelen
        size_t valuelen
        uint8_t flags
    ctypedef struct ng_frame:
        size_t length
        int32_t stream_id
        uint8_t type
        uint8_t flags
    ctypedef struct ng_setting:
        int32_t id
        uint32_t value
    ctypedef union ng_source:
        void *ptr
    ctypedef ng_ssize (*ng_read)(
        ng_session *, int32_t, uint8_t *, size_t, uint32_t *, ng_source *, void *
    ) noexcept
    ctypedef struct ng_provider:
        ng_source source
        ng_read read
    ctypedef int (*ng_on_frame)(ng_session *, const ng_frame *, void *) noexcept
    ctypedef int (*ng_on_header)(
        ng_session *, const ng_frame *, const uint8_t *, size_t, const uint8_t *, size_t, uint8_t, void *
    ) noexcept
    ctypedef int (*ng_on_data)(ng_session *, uint8_t, int32_t, const uint8_t *, size_t, void *) noexcept
    ctypedef int (*ng_on_close)(ng_session *, int32_t, uint32_t, void *) noexcept

    const char *ng_load()
    int ng_session_callbacks_new(ng_callbacks **)
    void ng_session_callbacks_set_on_begin_headers_callback(ng_callbacks *, ng_on_frame)
    void ng_session_callbacks_set_on_header_callback(ng_callbacks *, ng_on_header)
    void ng_session_callbacks_set_on_data_chunk_recv_callback(ng_callbacks *, ng_on_data)
    void ng_session_callbacks_set_on_frame_recv_callback(ng_callbacks *, ng_on_frame)
    void ng_session_callbacks_set_on_frame_send_callback(ng_callbacks *, ng_on_frame)
    void ng_session_callbacks_set_on_stream_close_callback(ng_callbacks *, ng_on_close)
    int ng_session_server_new(ng_session **, const ng_callbacks *, void *)
    void ng_session_del(ng_session *)
    ng_ssize ng_session_mem_recv(ng_session *, const uint8_t *, size_t)
    ng_ssize ng_session_mem_send(ng_session *, const uint8_t **)
    int ng_session_want_read(ng_session *)
    int ng_session_want_write(ng_session *)
    int ng_session_terminate_session(ng_session *, uint32_t)
    int ng_session_set_local_window_size(ng_session *, uint8_t, int32_t, int32_t)
    int ng_submit_settings(ng_session *, uint8_t, const ng_setting *, size_t)
    int ng_submit_response(ng_session *, int32_t, const ng_nv *, size_t, const ng_provider *)
    int ng_submit_trailer(ng_session *, int32_t, const ng_nv *, size_t)
    int ng_submit_rst_stream(ng_session *, uint8_t, int32_t, uint32_t)
    int ng_submit_shutdown_notice(ng_session *)
    int ng_submit_goaway(ng_session *, uint8_t, int32_t, uint32_t, const uint8_t *, size_t)
    int32_t ng_session_get_last_proc_stream_id(ng_session *)
    const char *ng_strerror(int)


# -- the library's numbers ---------------------------------------------------------------------------------------------

cdef enum:
    DATA = 0
    HEADERS = 1
    END_STREAM = 1
    NO_COPY = 2 | 4  # of a name and of a value: they stay where they are until they are sent
    EOF_ = 1
    NO_END_STREAM = 2  # trailers follow
    MAX_CONCURRENT_STREAMS = 3
    MAX_HEADER_LIST_SIZE = 6
    NO_ERROR = 0
    ENHANCE_YOUR_CALM = 11
    RESET_STREAM = -521  # a callback's answer: reset this stream, and go on
    CALLBACK_FAILURE = -902
    CONNECTION_WINDOW = 1 << 20

# Codes of gRPC that are given here.
cdef enum:
    UNIMPLEMENTED = 12
    INTERNAL = 13
    RESOURCE_EXHAUSTED = 8

PATIENCE = 200
"""How many streams a peer may reset before they are answered, beyond as many as were answered."""

cdef ng_callbacks *callbacks = NULL
cdef bint looked = False
cdef str missing = None


def available():
    """Whether libnghttp2 is there, with all that is needed of it."""
    global looked, missing, callbacks
    cdef const char *absent
    if not looked:
        absent = ng_load()
        if absent is not NULL:
            missing = absent.decode()
        elif ng_session_callbacks_new(&callbacks) != 0:
            missing = "memory"
        else:
            ng_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers)
            ng_session_callbacks_set_on_header_callback(callbacks, on_header)
            ng_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data)
            ng_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame)
            ng_session_callbacks_set_on_frame_send_callback(callbacks, on_sent)
            ng_session_callbacks_set_on_stream_close_callback(callbacks, on_close)
        looked = True
    return missing is None


# -- headers that are the same in every answer -------------------------------------------------------------------------

cdef void header(
    ng_nv *to, const char *name, size_t name_length, const char *value, size_t length, uint8_t flags
) noexcept:
    to.name, to.namelen = <uint8_t *> name, name_length
    to.value, to.valuelen = <uint8_t *> value, length
    to.flags = flags

cdef ng_nv OPENING[2]  # of an answer with a message
header(&OPENING[0], b":status", 7, b"200", 3, NO_COPY)
header(&OPENING[1], b"content-type", 12, b"application/grpc", 16, NO_COPY)
cdef ng_nv TRAILER[1]
header(&TRAILER[0], b"grpc-status", 11, b"0", 1, NO_COPY)

cdef enum:
    IS_POST = 1
    IS_GRPC = 2
    IS_HEAD = 4
    ASKED = 8  # the program has the request, and an answer is to come
    ANSWERED = 16
    WHOLE = 32


cdef class Stream:
    """A request, and later the answer to it."""

    cdef int32_t id
    cdef int flags
    cdef size_t header_bytes
    cdef bytes path
    cdef bytes timeout
    cdef bytes authorization
    cdef object body  # bytes, or a bytearray once a second piece has come
    # The answer: a message, or the text of an answer that is no gRPC.
    cdef bytes reply
    cdef Py_ssize_t sent
    cdef bint framed  # a message has a head of five bytes, and a trailer after it


cdef class Connection:
    """One connection, as the server has it."""

    cdef ng_session *session
    cdef dict streams
    cdef list requests
    cdef list gone
    cdef object error
    cdef size_t max_message, max_headers
    cdef uint8_t *out
    cdef size_t out_length, out_room
    cdef long resets, answers
    cdef bint guarded  # a token may be needed, so it is kept
    cdef object guard
    cdef bytes at_once_path
    cdef object at_once
    cdef Stream current  # the one that a callback was about last
    cdef bint begun  # the peer's first frame came
    cdef long unfinished  # streams whose request is not whole

    def __cinit__(
        self, size_t max_message=1 << 20, size_t max_headers=16 << 10, uint32_t max_streams=1000, guard=None,
        at_once=None,
    ):
        cdef ng_setting settings[2]
        if not available():
            raise RuntimeError(f"libnghttp2 cannot be used: {missing} is missing")
        self.streams = {}
        self.requests = []
        self.gone = []
        self.max_message, self.max_headers, self.guarded = max_message, max_headers, guard is not None
        self.guard = guard
        if at_once is not None:
            self.at_once_path, self.at_once = at_once
        if ng_session_server_new(&self.session, callbacks, <void *> self) != 0:
            raise MemoryError
        settings[0].id, settings[0].value = MAX_CONCURRENT_STREAMS, max_streams
        settings[1].id, settings[1].value = MAX_HEADER_LIST_SIZE, <uint32_t> max_headers
        self.check(ng_submit_settings(self.session, 0, settings, 2))
        self.check(ng_session_set_local_window_size(self.session, 0, 0, CONNECTION_WINDOW))

    def __dealloc__(self):
        if self.session is not NULL:
            ng_session_del(self.session)
        free(self.out)

    cdef int check(self, ng_ssize code) except -1:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if code < 0:
            raise ValueError(ng_strerror(<int> code).decode())
        return 0

    @property
    def incomplete(self):
        """Whether the rest of a request is to come, or the beginning of the connection."""
        return not self.begun or self.unfinished > 0

    @property
    def ended(self):
        """Whether nothing is to be read or written any more."""
        return not ng_session_want_read(self.session) and not ng_session_want_write(self.session)

    # -- in

    def receive(self, bytes data not None):
        """Bytes came. The requests that are whole now: (stream, path, message, time-out in ns or None).

        Raises `ValueError` for what is no HTTP/2: write what `take` has, and close.
        """
        cdef ng_ssize code
        code = ng_session_mem_recv(
            self.session, <const uint8_t *> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
        )
        self.check(code)
        if not self.requests:
            return ()
        requests, self.requests = self.requests, []
        return requests

    def authorization(self, int32_t id):
        """The metadatum `authorization` of a request, where the connection is `guarded`; None if it has none."""
        cdef Stream stream = self.streams.get(id)
        return None if stream is None or stream.authorization is None else stream.authorization.decode("latin-1")

    def take_gone(self):
        """Streams whose answer is not wanted any more, although the program has not given it."""
        if not self.gone:
            return ()
        gone, self.gone = self.gone, []
        return gone

    cdef inline Stream find(self, int32_t id):
        """The stream of a callback: mostly the same one as of the callback before."""
        if self.current is None or self.current.id != id:
            self.current = self.streams.get(id)
        return self.current

    cdef int complete(self, Stream stream) except -1:
        """The request is whole."""
        cdef const uint8_t *body
        cdef Py_ssize_t size
        if stream.flags & ANSWERED:
            return 0
        if not stream.flags & IS_GRPC or not stream.flags & IS_POST:
            self.explain(stream)
            return 0
        given = stream.body
        size = 0 if given is None else len(given)
        if size < 5:
            self.refuse(stream, INTERNAL, "the request has no message")
            return 0
        if type(given) is not bytes:
            given = bytes(given)
        body = <const uint8_t *> PyBytes_AS_STRING(given)
        if body[0]:
            self.refuse(stream, UNIMPLEMENTED, "compressed messages are not read")
            return 0
        if size - 5 != (body[1] << 24 | body[2] << 16 | body[3] << 8 | body[4]):
            self.refuse(stream, INTERNAL, "a request has exactly one message")
            return 0
        stream.body = None
        message = PyBytes_FromStringAndSize(<const char *> body + 5, size - 5)
        if self.at_once is not None and stream.path is self.at_once_path:
            reply = self.try_at_once(stream, message)
            if reply is not None:
                self.send(stream, <bytes> reply)
                return 0
        stream.flags |= ASKED
        timeout = None if stream.timeout is None else timeout_ns(stream.timeout)
        self.requests.append((stream.id, stream.path, message, timeout))
        return 0

    # -- answers

    cdef object try_at_once(self, Stream stream, bytes message):
        """The answer of `at_once`; None where the program has to see the request, also for what has gone wrong."""
        try:
            if self.guard is not None:
                self.guard(None if stream.authorization is None else stream.authorization.decode("latin-1"))
            return self.at_once(message)
        except Exception:  # the program comes to the same, and tells the peer
            return None

    def answer(self, int32_t id, bytes message not None):
        """Answer a request with a message. An answer to a stream that is gone is dropped; returns whether it is sent."""
        cdef Stream stream = self.streams.get(id)
        if stream is None or stream.flags & ANSWERED:
            return False
        self.send(stream, message)
        return True

    cdef int send(self, Stream stream, bytes message) except -1:
        cdef ng_provider provider
        stream.flags |= ANSWERED
        stream.reply = message
        stream.framed = True
        provider.source.ptr = <void *> stream
        provider.read = read_reply
        self.answers += 1
        return self.check(ng_submit_response(self.session, stream.id, OPENING, 2, &provider))

    def fail(self, int32_t id, int code, str reason not None):
        """Answer a request with a status of gRPC and a reason, and no message."""
        cdef Stream stream = self.streams.get(id)
        if stream is None or stream.flags & ANSWERED:
            return False
        self.answers += 1
        self.refuse(stream, code, reason)
        return True

    cdef int refuse(self, Stream stream, int code, str reason) except -1:
        fields = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-status", b"%d" % code)]
        fields.append((b"grpc-message", escaped(reason)))
        if code == UNIMPLEMENTED:
            fields.append((b"grpc-accept-encoding", b"identity"))
        return self.respond(stream, fields, None)

    cdef int explain(self, Stream stream) except -1:
        """To a peer that speaks HTTP and no gRPC."""
        post = stream.flags & IS_POST
        fields = [(b":status", b"415" if post else b"405"), (b"content-type", b"text/plain")]
        if not post:
            fields.append((b"allow", b"POST"))
        return self.respond(stream, fields, b"this port serves gRPC: POST with content-type application/grpc\n")

    cdef int respond(self, Stream stream, list fields, bytes text) except -1:
        cdef ng_nv given[6]
        cdef ng_provider provider
        cdef int i = 0
        stream.flags |= ANSWERED
        stream.body = None
        if text is not None:
            fields.append((b"content-length", b"%d" % len(text)))
        for name, value in fields:
            header(&given[i], <bytes> name, len(<bytes> name), <bytes> value, len(<bytes> value), 0)
            i += 1
        if text is None or stream.flags & IS_HEAD:
            return self.check(ng_submit_response(self.session, stream.id, given, i, NULL))
        stream.reply = text
        provider.source.ptr = <void *> stream
        provider.read = read_reply
        return self.check(ng_submit_response(self.session, stream.id, given, i, &provider))

    # -- out

    def take(self):
        """All that is to be written now."""
        cdef const uint8_t *piece
        cdef ng_ssize length
        self.out_length = 0
        while True:
            length = ng_session_mem_send(self.session, &piece)
            if length <= 0:
                break
            if self.out_length + length > self.out_room:
                self.grow(self.out_length + length)
            memcpy(self.out + self.out_length, piece, length)
            self.out_length += length
        self.check(length)
        if not self.out_length:
            return b""
        return PyBytes_FromStringAndSize(<const char *> self.out, self.out_length)

    cdef int grow(self, size_t needed) except -1:
        cdef size_t room = max(needed, 2 * self.out_room, <size_t> 4096)
        cdef uint8_t *larger = <uint8_t *> realloc(self.out, room)
        if larger is NULL:
            raise MemoryError
        self.out, self.out_room = larger, room
        return 0

    # -- the end

    def announce_end(self):
        """Tell the peer to open no more streams here; `close` follows when it had the time to hear that."""
        self.check(ng_submit_shutdown_notice(self.session))

    def close(self):
        """No more streams: those that are open are answered, and then it has `ended`."""
        last = ng_session_get_last_proc_stream_id(self.session)
        self.check(ng_submit_goaway(self.session, 0, last, NO_ERROR, NULL, 0))


# -- callbacks of the library ------------------------------------------------------------------------------------------


cdef int on_begin_headers(ng_session *session, const ng_frame *frame, void *given) noexcept:
    cdef Connection self = <Connection> given
    cdef Stream stream
    try:
        if frame.type == HEADERS and frame.stream_id not in self.streams:  # else they are trailers
            stream = Stream.__new__(Stream)
            stream.id = frame.stream_id
            self.streams[frame.stream_id] = self.current = stream
            self.unfinished += 1
    except BaseException as error:
        self.error = error
        return CALLBACK_FAILURE
    return 0


cdef int on_header(
    ng_session *session,
    const ng_frame *frame,
    const uint8_t *name,
    size_t name_length,
    const uint8_t *value,
    size_t length,
    uint8_t flags,
    void *given,
) noexcept:
    cdef Connection self = <Connection> given
    cdef Stream stream
    try:
        stream = self.find(frame.stream_id)
        if stream is None:
            return 0
        stream.header_bytes += name_length + length + 32
        if stream.header_bytes > self.max_headers:
            return RESET_STREAM
        if name_length == 5 and memcmp(name, b":path", 5) == 0:
            if (
                self.at_once_path is not None
                and length == <size_t> PyBytes_GET_SIZE(self.at_once_path)
                and memcmp(value, PyBytes_AS_STRING(self.at_once_path), length) == 0
            ):
                stream.path = self.at_once_path
            else:
                stream.path = PyBytes_FromStringAndSize(<const char *> value, length)
        elif name_length == 7 and memcmp(name, b":method", 7) == 0:
            if length == 4 and memcmp(value, b"POST", 4) == 0:
                stream.flags |= IS_POST
            elif length == 4 and memcmp(value, b"HEAD", 4) == 0:
                stream.flags |= IS_HEAD
        elif name_length == 12:
            if memcmp(name, b"content-type", 12) == 0:
                if is_grpc(value, length):
                    stream.flags |= IS_GRPC
            elif memcmp(name, b"grpc-timeout", 12) == 0:
                stream.timeout = PyBytes_FromStringAndSize(<const char *> value, length)
        elif self.guarded and name_length == 13 and memcmp(name, b"authorization", 13) == 0:
            stream.authorization = PyBytes_FromStringAndSize(<const char *> value, length)
    except BaseException as error:
        self.error = error
        return CALLBACK_FAILURE
    return 0


cdef bint is_grpc(const uint8_t *value, size_t length) noexcept:
    """`application/grpc`, alone or with a suffix such as `+proto`."""
    if length < 16 or memcmp(value, b"application/grpc", 16) != 0:
        return False
    return length == 16 or value[16] == c"+" or value[16] == c";"


cdef int on_data(
    ng_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t length, void *given
) noexcept:
    cdef Connection self = <Connection> given
    cdef Stream stream
    try:
        stream = self.find(id)
        if stream is None or stream.flags & ANSWERED or not stream.flags & IS_GRPC:
            return 0  # what is not wanted is not kept
        if stream.body is None:
            stream.body = PyBytes_FromStringAndSize(<const char *> data, length)
        else:
            if type(stream.body) is bytes:
                stream.body = bytearray(stream.body)
            (<bytearray> stream.body).extend((<const char *> data)[:length])
        if <size_t> len(stream.body) > self.max_message + 5:
            self.refuse(stream, RESOURCE_EXHAUSTED, f"a message has at most {self.max_message} bytes")
    except BaseException as error:
        self.error = error
        return CALLBACK_FAILURE
    return 0


cdef int on_frame(ng_session *session, const ng_frame *frame, void *given) noexcept:
    cdef Connection self = <Connection> given
    cdef Stream stream
    try:
        self.begun = True
        if (frame.type == DATA or frame.type == HEADERS) and frame.flags & END_STREAM:
            stream = self.find(frame.stream_id)
            if stream is not None:
                stream.flags |= WHOLE
                self.unfinished -= 1
                self.complete(stream)
    except BaseException as error:
        self.error = error
        return CALLBACK_FAILURE
    return 0


cdef int on_sent(ng_session *session, const ng_frame *frame, void *given) noexcept:
    """An answer went out before its request was whole: let the peer send no more of it."""
    cdef Connection self = <Connection> given
    cdef Stream stream
    if not self.unfinished or not frame.flags & END_STREAM or (frame.type != DATA and frame.type != HEADERS):
        return 0
    try:
        stream = self.streams.get(frame.stream_id)
        if stream is not None and not stream.flags & WHOLE:
            self.check(ng_submit_rst_stream(session, 0, frame.stream_id, NO_ERROR))
    except BaseException as error:
        self.error = error
        return CALLBACK_FAILURE
    return 0


cdef int on_close(ng_session *session, int32_t id, uint32_t code, void *given) noexcept:
    cdef Connection self = <Connection> given
    cdef Stream stream
    try:
        stream = self.streams.pop(id, None)
        if stream is self.current:
            self.current = None
        if stream is not None and not stream.flags & WHOLE:
            self.unfinished -= 1
        if stream is not None and not stream.flags & ANSWERED:
            if stream.flags & ASKED:
                self.gone.append(id)
            self.resets += 1
            if self.resets > self.answers + PATIENCE:
                self.check(ng_session_terminate_session(session, ENHANCE_YOUR_CALM))
    except BaseException as error:
        self.error = error
        return CALLBACK_FAILURE
    return 0


cdef ng_ssize read_reply(
    ng_session *session, int32_t id, uint8_t *buffer, size_t room, uint32_t *flags, ng_source *source, void *given
) noexcept:
    """A piece of the answer: of a message its head first, and after it the trailer."""
    cdef Stream stream = <Stream> source.ptr
    cdef Py_ssize_t size = PyBytes_GET_SIZE(stream.reply)
    cdef Py_ssize_t head = 5 if stream.framed else 0
    cdef Py_ssize_t written = 0, part
    while stream.sent < head and <size_t> written < room:
        # One byte that says "not compressed", and the length in four.
        buffer[written] = 0 if stream.sent == 0 else <uint8_t> (size >> (8 * (4 - stream.sent)))
        stream.sent += 1
        written += 1
    if stream.sent >= head:
        part = min(<Py_ssize_t> room - written, head + size - stream.sent)
        memcpy(buffer + written, PyBytes_AS_STRING(stream.reply) + stream.sent - head, part)
        stream.sent += part
        written += part
    if stream.sent == head + size:
        flags[0] |= EOF_
        if stream.framed:
            flags[0] |= NO_END_STREAM
            if ng_submit_trailer(session, id, TRAILER, 1) != 0:
                return CALLBACK_FAILURE
    return written


# -- texts of gRPC -----------------------------------------------------------------------------------------------------

cdef dict UNITS = {b"H": 3600 * 10**9, b"M": 60 * 10**9, b"S": 10**9, b"m": 10**6, b"u": 10**3, b"n": 1}


def timeout_ns(bytes text not None):
    """A `grpc-timeout` header in nanoseconds; None if it is none, which is then not kept.

    >>> timeout_ns(b"20m"), timeout_ns(b"soon")
    (20000000, None)
    """
    number, unit = text[:-1], UNITS.get(text[-1:])
    if unit is None or not number.isdigit() or len(number) > 8:
        return None
    return int(number) * unit


def escaped(str text not None):
    """A reason as a `grpc-message` header has it: printable ASCII, all else as %XX.

    >>> escaped("100 % naïve")
    b'100 %25 na%C3%AFve'
    """
    return b"".join(
        b"%c" % byte if 32 <= byte < 127 and byte != 37 else b"%%%02X" % byte
        for byte in text.encode(errors="replace")
    )
