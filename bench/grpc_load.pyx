# cython: language_level=3, boundscheck=False, wraparound=False
"""A load generator for gRPC calls with one message each way: so light that the server is what is measured.

    run(port, b"/pkg.Service/Method", [message, ...], connections=8, streams=16, seconds=1.0)

Requests are frames of HTTP/2 that are made once: the first request of a connection puts its headers into the peer's
table (HPACK, RFC 7541 6.2.1), and every later one names them by their places, as Envoy's do. Of an answer only the
frames are read, and of its message the first bytes: a call counts as answered when its stream ends, and as good when it
has a message. `streams` calls are under way on each connection; when answers come, as many are sent again, in one write.

`compiled.py` builds this file. Nothing here is a part of the package.
"""

import socket

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int, void *, size_t, int)
    ssize_t send(int, const void *, size_t, int)

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *, unsigned long, int)
    enum: POLLIN

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec *)
    enum: CLOCK_MONOTONIC

cdef enum:
    ROOM = 1 << 20
    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    MAX_STREAMS = 4096

cdef struct Peer:
    int fd
    uint32_t next_id
    uint8_t *inbox
    size_t held
    uint8_t *outbox
    size_t length, room
    uint32_t unacknowledged   # bytes of DATA that the window is short of
    uint32_t had_message[MAX_STREAMS]  # ids of streams with a message, by id / 2 modulo
    uint64_t begun[MAX_STREAMS]
    bint ended


cdef inline uint64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t> t.tv_sec * 1000000000 + <uint64_t> t.tv_nsec


cdef inline void frame_head(uint8_t *to, uint32_t length, uint8_t kind, uint8_t flags, uint32_t stream) noexcept nogil:
    to[0], to[1], to[2] = <uint8_t> (length >> 16), <uint8_t> (length >> 8), <uint8_t> length
    to[3], to[4] = kind, flags
    to[5], to[6], to[7], to[8] = <uint8_t> (stream >> 24), <uint8_t> (stream >> 16), <uint8_t> (stream >> 8), <uint8_t> stream


cdef int put(Peer *peer, const uint8_t *data, size_t length) noexcept nogil:
    if peer.length + length > peer.room:
        peer.room = 2 * (peer.length + length)
        peer.outbox = <uint8_t *> realloc(peer.outbox, peer.room)
    memcpy(peer.outbox + peer.length, data, length)
    peer.length += length
    return 0


cdef int flush(Peer *peer) noexcept nogil:
    cdef size_t sent = 0
    cdef ssize_t n
    cdef pollfd waiting
    while sent < peer.length:
        n = send(peer.fd, peer.outbox + sent, peer.length - sent, 0x4000)  # MSG_NOSIGNAL
        if n > 0:
            sent += n
        elif errno == EAGAIN:
            waiting.fd, waiting.events = peer.fd, 4
            poll(&waiting, 1, 1000)
        elif errno != EINTR:
            peer.ended = True
            break
    peer.length = 0
    return 0


def _literal(int index, bytes name, bytes value):
    """A header that goes into the peer's table."""
    assert len(value) < 127
    head = bytes([0x40 | index]) if index else b"\x40" + bytes([len(name)]) + name
    return head + bytes([len(value)]) + value


def _frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def run(
    int port, bytes path, list messages, int connections=8, int streams=16, double seconds=1.0, bytes token=b""
):
    """Keep `connections * streams` calls at a server on loopback for so long.

    Returns (calls answered, calls answered with a message, seconds, the last message, latencies in ns at 50 and 99 %).
    """
    cdef int i, count = len(messages), alive
    cdef uint64_t answered = 0, good = 0, begin, end, at, random = 88172645463325252
    cdef uint64_t histogram[4096]  # of 2 us each
    cdef Peer *peers = <Peer *> malloc(connections * sizeof(Peer))
    cdef pollfd *waiting = <pollfd *> malloc(connections * sizeof(pollfd))
    cdef const uint8_t **bodies = <const uint8_t **> malloc(count * sizeof(uint8_t *))
    cdef size_t *sizes = <size_t *> malloc(count * sizeof(size_t))
    cdef uint8_t last[256]
    cdef uint32_t last_length = 0
    cdef bytes headers, framed
    assert 0 < streams <= MAX_STREAMS // 2
    for i in range(4096):
        histogram[i] = 0
    # DATA frames; the stream is written into them when they are sent.
    kept = []
    for i in range(count):
        framed = _frame(DATA, 1, 0, b"\0" + len(messages[i]).to_bytes(4, "big") + messages[i])
        kept.append(framed)
        bodies[i], sizes[i] = <const uint8_t *> <char *> framed, len(framed)
    first = b"\x83\x86" + _literal(4, b"", path) + _literal(1, b"", b"bench") \
        + _literal(31, b"", b"application/grpc") + _literal(0, b"te", b"trailers")
    later = b"\x83\x86\xc1\xc0\xbf\xbe"
    if token:
        first += _literal(23, b"", token)
        later = b"\x83\x86\xc2\xc1\xc0\xbf\xbe"
    opened = []
    for i in range(connections):
        made = socket.create_connection(("127.0.0.1", port), timeout=10)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The preface, a window of 1 GiB for the connection, and one call alone, which fills the table.
        made.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, b"\x00\x02\x00\x00\x00\x00")
            + _frame(8, 0, 0, (1 << 30).to_bytes(4, "big")) + _frame(HEADERS, 4, 1, first)
            + _frame(DATA, 1, 1, kept[0][9:])
        )
        opened.append(made)
        peers[i].fd, peers[i].next_id = made.fileno(), 3
        peers[i].inbox, peers[i].held = <uint8_t *> malloc(ROOM), 0
        peers[i].outbox, peers[i].length, peers[i].room = <uint8_t *> malloc(ROOM), 0, ROOM
        peers[i].unacknowledged, peers[i].ended = 0, False
        memset(peers[i].had_message, 0, sizeof(peers[i].had_message))
        memset(peers[i].begun, 0, sizeof(peers[i].begun))
        made.setblocking(False)
        waiting[i].fd, waiting[i].events = peers[i].fd, POLLIN
    headers = _frame(HEADERS, 4, 0, later)
    cdef const uint8_t *head = <const uint8_t *> <char *> headers
    cdef size_t head_size = len(headers)
    cdef uint32_t wanted
    begin = now_ns()
    end = begin + <uint64_t> (seconds * 1e9)
    at = begin
    with nogil:
        for i in range(connections):
            call(&peers[i], streams - 1, head, head_size, bodies, sizes, count, &random, at)
            flush(&peers[i])
        while at < end:
            poll(waiting, connections, 100)
            at = now_ns()
            alive = 0
            for i in range(connections):
                if peers[i].ended:
                    continue
                alive += 1
                if not waiting[i].revents:
                    continue
                wanted = read(&peers[i], &answered, &good, last, &last_length, histogram, at)
                if wanted:
                    call(&peers[i], wanted, head, head_size, bodies, sizes, count, &random, at)
                flush(&peers[i])
            if not alive:
                break
    took = (at - begin) / 1e9
    said = bytes(last[:last_length])
    marks = [0, 0]
    total, passed = sum(histogram[n] for n in range(4096)), 0
    for n in range(4096):
        passed += histogram[n]
        for place, share in ((0, 0.5), (1, 0.99)):
            if not marks[place] and passed >= share * total:
                marks[place] = 2000 * (n + 1)
    for i in range(connections):
        free(peers[i].inbox)
        free(peers[i].outbox)
        opened[i].close()
    ended = any(peers[n].ended for n in range(connections))
    free(peers)
    free(waiting)
    free(bodies)
    free(sizes)
    if ended:
        raise ConnectionError("the server has ended a connection")
    return answered, good, took, said, marks[0], marks[1]


cdef int call(
    Peer *peer, uint32_t calls, const uint8_t *head, size_t head_size, const uint8_t **bodies, size_t *sizes, int count,
    uint64_t *random, uint64_t at,
) noexcept nogil:
    """Put so many requests into the outbox."""
    cdef uint32_t id, n
    cdef uint8_t *written
    cdef int which
    for n in range(calls):
        id, peer.next_id = peer.next_id, peer.next_id + 2
        random[0] ^= random[0] << 13
        random[0] ^= random[0] >> 7
        random[0] ^= random[0] << 17
        which = <int> (random[0] % <uint64_t> count)
        put(peer, head, head_size)
        written = peer.outbox + peer.length - head_size
        written[5], written[6] = <uint8_t> (id >> 24), <uint8_t> (id >> 16)
        written[7], written[8] = <uint8_t> (id >> 8), <uint8_t> id
        put(peer, bodies[which], sizes[which])
        written = peer.outbox + peer.length - sizes[which]
        written[5], written[6] = <uint8_t> (id >> 24), <uint8_t> (id >> 16)
        written[7], written[8] = <uint8_t> (id >> 8), <uint8_t> id
        peer.begun[(id >> 1) % MAX_STREAMS] = at
        peer.had_message[(id >> 1) % MAX_STREAMS] = 0
    return 0


cdef uint32_t read(
    Peer *peer, uint64_t *answered, uint64_t *good, uint8_t *last, uint32_t *last_length, uint64_t *histogram, uint64_t at
) noexcept nogil:
    """Read what came; how many calls were answered."""
    cdef ssize_t n = recv(peer.fd, peer.inbox + peer.held, ROOM - peer.held, 0)
    cdef size_t start = 0
    cdef uint32_t length, id, done = 0, slot
    cdef uint64_t took
    cdef uint8_t kind, flags
    cdef uint8_t frame[17]
    if n <= 0:
        if n == 0 or (errno != EAGAIN and errno != EINTR):
            peer.ended = True
        return 0
    peer.held += n
    while peer.held - start >= 9:
        length = (peer.inbox[start] << 16) | (peer.inbox[start + 1] << 8) | peer.inbox[start + 2]
        if peer.held - start < 9 + length:
            break
        kind, flags = peer.inbox[start + 3], peer.inbox[start + 4]
        id = (<uint32_t> peer.inbox[start + 5] << 24) | (peer.inbox[start + 6] << 16) | (peer.inbox[start + 7] << 8) \
            | peer.inbox[start + 8]
        slot = (id >> 1) % MAX_STREAMS
        start += 9
        if kind == DATA:
            peer.unacknowledged += length
            if length > 5:
                peer.had_message[slot] = id
                last_length[0] = min(<uint32_t> 256, length)
                memcpy(last, peer.inbox + start, last_length[0])
        elif kind == SETTINGS and not flags & 1:
            frame_head(frame, 0, SETTINGS, 1, 0)
            put(peer, frame, 9)
        elif kind == PING and not flags & 1:
            frame_head(frame, 8, PING, 1, 0)
            memcpy(frame + 9, peer.inbox + start, 8)
            put(peer, frame, 17)
        elif kind == GOAWAY:
            peer.ended = True
        if (kind == HEADERS or kind == DATA) and flags & 1 or kind == RST_STREAM:
            done += 1
            answered[0] += 1
            if peer.had_message[slot] == id:
                good[0] += 1
            if peer.begun[slot]:
                took = (at - peer.begun[slot]) // 2000
                histogram[min(took, <uint64_t> 4095)] += 1
        start += length
    if start:
        memmove(peer.inbox, peer.inbox + start, peer.held - start)
        peer.held -= start
    if peer.unacknowledged > 1 << 28:
        frame_head(frame, 4, 8, 0, 0)
        frame[9], frame[10] = <uint8_t> (peer.unacknowledged >> 24), <uint8_t> (peer.unacknowledged >> 16)
        frame[11], frame[12] = <uint8_t> (peer.unacknowledged >> 8), <uint8_t> peer.unacknowledged
        put(peer, frame, 13)
        peer.unacknowledged = 0
    return done
