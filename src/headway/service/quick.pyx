# cython: language_level=3, binding=False, boundscheck=False, wraparound=False, cdivision=True
"""The usual `POST /v1/acquire` on `memory://` in one step: the bytes of requests in, the bytes of their answers out.

`headway.service.hot` answers a hot call by the functions that every other call is answered by: a body becomes a message,
a permit is made and dropped, a status, a grant and an answer are made of it, and an encoder writes them. Nearly all
requests need none of these objects. Clients send the same heads and the same bodies again, and an answer differs from
the one before by four numbers. So three things are kept, and each is made by the ordinary code:

    a head       that was parsed before and may ask for permits    its bytes; dropped when the tokens change
    a body       what it asks for: a limit, a key, a cost          its bytes, in two generations of `MOST_BODIES`
    a plan       how a limit answers: the texts around the numbers with the limit; good for its configuration, its
                                                                   limiter and its rule, and made anew for others

What is left for each request is the decision: look, take if it is there, read the numbers of this very moment, count, and
write them between the texts. Nothing lets other threads or tasks run from looking to taking.

Whatever is not so simple goes the ordinary way, since nothing has changed then: a shared engine, several rules, overrides,
permits that are held, a wait, an id, a pause, waiters, a key that there is no room for, a server that ends. Numbers that
cannot be written so simply (a time that is not known, of microseconds or of many months) are written by the ordinary code.
There is no interpreted form; a test compares the answers of both ways, byte for byte.
"""

import re
import time

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from libc.string cimport memcmp, memcpy, strlen

cimport cython
from headway.clock cimport monotonic
from headway.core.ledger cimport Ledger, Rule
from headway.engines.memory.keyed_ledgers cimport KeyedLedgers
from headway.engines.memory.store cimport MemoryStore
from headway.limiter.local cimport LocalLimiter
from headway.service.figures cimport LimitFigures
from headway.service.served_limit cimport ServedLimit

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headway.core.ledger import FOREVER as _FOREVER
from headway.errors import seconds_text
from headway.limit_headers import MOST as _MOST
from headway.limit_headers import until
from headway.service.calls import said_at_once
from headway.service.encoded import JSON, PROBLEM_JSON
from headway.service.problems import Problem
from headway.service.standing import UNKNOWN_RESET, standing_of_rows

cdef extern from "Python.h":
    char *PyOS_double_to_string(double value, char format_code, int precision, int flags, int *kind) except NULL

MOST_BODIES = 10_000
LONGEST_BODY = 512
MOST_HEADS = 1024

cdef enum:
    ROOM = 8192
    MOST_SLOTS = 12
    DIGITS = 32  # bytes of what stands in a slot, at most
    LEFT = 0
    RETRY = 1
    RESET = 2
    OUT = 3
    UNTIL = 4
    WHEN = 5

cdef long long FOREVER = _FOREVER
cdef long long MOST = _MOST
cdef long long SECOND = 1_000_000_000
# Shorter times have an exponent in JSON. Of longer ones a float cannot tell every nanosecond, and its shortest text is
# another one than that of the whole number.
cdef long long SHORT = 10_000
cdef long long LONG = 8_388_608 * SECOND
# From here on a person is told seconds, and not milliseconds.
cdef long long IN_SECONDS = 10_000_000
cdef bytes CALL = b"POST /v1/acquire HTTP/1.1\r\n"
cdef bytes END_OF_HEAD = b"\r\n\r\n"
cdef bytes LENGTH = b"content-length: "


@cython.final
cdef class Text:
    """A text with places for numbers, in the order in which they are written."""

    cdef list pieces
    cdef int slots[MOST_SLOTS]
    cdef Py_ssize_t count, size

    def __init__(self, pieces, slots):
        self.pieces, self.count = pieces, len(slots)
        self.size = sum(map(len, pieces)) + DIGITS * len(slots)
        for place, slot in enumerate(slots):
            self.slots[place] = slot

    cdef Py_ssize_t write(self, char *out, Py_ssize_t at, long long *numbers) except -1:
        cdef Py_ssize_t place
        cdef int slot
        for place in range(self.count):
            at = put(out, at, <bytes> self.pieces[place])
            slot = self.slots[place]
            if slot == RETRY or slot == RESET:
                at = put_seconds(out, at, numbers[slot])
            elif slot == WHEN:
                at = put_when(out, at, numbers[RETRY])
            else:
                at = put_number(out, at, numbers[slot])
        return put(out, at, <bytes> self.pieces[self.count])


@cython.final
cdef class Saying:
    """How a limit says one thing: granted, or denied."""

    cdef bytes begin, end
    cdef Text head, body
    cdef object status, reason
    cdef Py_ssize_t size


@cython.final
cdef class Plan:
    """How requests for a limit are decided, as long as it is this one."""

    cdef object config, name
    cdef LocalLimiter limiter
    cdef Rule rule
    cdef Saying granted, denied
    cdef LimitFigures figures
    cdef double unknown_reset
    cdef bint usual, wall, shadow


@cython.final
@cython.no_gc
cdef class Wanted:
    """What a body asks for."""

    cdef object name, key
    cdef long long cost


cdef class QuickAcquires:
    """Answers for the hot calls of a service (`headway.service.hot`)."""

    cdef object hot, service, decider, tokens, admitted_by, decode, now
    cdef dict served, answers, heads, young, old
    cdef bytes last_head, default_lines
    cdef list default_headers
    cdef Py_ssize_t last_length
    cdef bint system_clock
    cdef readonly Py_ssize_t done, answered
    """Of the last read: how many bytes and how many requests were answered."""
    cdef readonly long long requests
    """How many were answered here."""

    def __init__(self, hot, service, call):
        self.hot, self.service, self.decode = hot, service, call.decoded
        self.decider, self.tokens, self.now = service.decider, service.tokens, service.now
        self.system_clock = service.now is time.monotonic
        self.served = service.limits.by_name
        self.answers = service.metrics.answers_of(call.endpoint.path)
        self.heads, self.young, self.old = {}, {}, {}

    @property
    def kept(self):
        """How many heads and bodies are kept."""
        return len(self.heads), len(self.young) + len(self.old)

    def __call__(self, bytes data not None, list default_headers not None):
        """The answers to requests that `data` begins with, up to one that is not for here; None where the first one is not.

        `default_headers` are what the server says in every answer.
        """
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0, body
        cdef bytes answer, first = None
        cdef list more = None
        self.done = self.answered = 0
        if default_headers is not self.default_headers:
            self.default_headers, self.default_lines = default_headers, self.hot.default_lines(default_headers)
        if self.tokens.known is not self.admitted_by:
            self.heads, self.last_head, self.admitted_by = {}, None, self.tokens.known
        if self.decider.closing:
            return None
        while at < size:
            body = self.body_after(data, at)
            if body < 0 or body + self.last_length > size:
                break
            answer = self.answer(data[body : body + self.last_length])
            if answer is None:
                break
            at = body + self.last_length
            self.answered += 1
            if first is None:
                first = answer
            elif more is None:
                more = [first, answer]
            else:
                more.append(answer)
        self.done = at
        self.requests += self.answered
        return first if more is None else b"".join(more)

    cdef Py_ssize_t body_after(self, bytes data, Py_ssize_t at) except -2:
        """Where the body begins whose head begins at `at`, and has `last_length` bytes; -1 where the head is not known."""
        cdef const char *text = PyBytes_AS_STRING(data) + at
        cdef Py_ssize_t left = PyBytes_GET_SIZE(data) - at, size
        if self.last_head is not None:
            size = PyBytes_GET_SIZE(self.last_head)
            if left >= size and memcmp(text, PyBytes_AS_STRING(self.last_head), size) == 0:
                return at + size
        size = PyBytes_GET_SIZE(CALL)
        if left < size or memcmp(text, PyBytes_AS_STRING(CALL), size) != 0:
            return -1
        size = data.find(END_OF_HEAD, at)
        if size < 0:
            return -1
        head = data[at : size + 4]
        length = self.heads.get(head)
        if length is None:
            length = self.hot.acquire_length(head)
            if length is None:
                return -1
            if len(self.heads) >= MOST_HEADS:
                self.heads = {}
            self.heads[head] = length
        # Where there are tokens, only a hash may lead to a head: comparing bytes would tell by its time how near they are.
        self.last_head, self.last_length = None if self.admitted_by else head, length
        return size + 4

    cdef bytes answer(self, bytes raw):
        """The answer to a body; None: the ordinary way has to be gone, and nothing has changed."""
        wanted = self.young.get(raw)
        if wanted is None:
            wanted = self.find(raw)
        if wanted is False:
            return None
        try:
            return self.decide(<Wanted> wanted)
        except Exception as error:
            return self.hot.written(self.hot.failed(error), self.default_headers)

    cdef object find(self, bytes raw):
        wanted = self.old.get(raw)
        if wanted is None:
            wanted = self.read(raw)
        if PyBytes_GET_SIZE(raw) <= LONGEST_BODY:
            if len(self.young) >= MOST_BODIES:
                self.old, self.young = self.young, {}
            self.young[raw] = wanted
        return wanted

    cdef object read(self, bytes raw):
        """What a body asks for; False if that is not for here."""
        cdef Wanted wanted
        try:
            body = self.decode(raw)
        except Problem:
            return False
        if body.wait or body.hold or body.id is not None or type(body.cost) is not int:
            return False
        if body.key is not None and type(body.key) is not str:
            return False
        wanted = Wanted.__new__(Wanted)
        wanted.name, wanted.key, wanted.cost = body.limit, body.key, body.cost
        return wanted

    # -- one decision ------------------------------------------------------------------------------------

    cdef bytes decide(self, Wanted wanted):
        cdef ServedLimit served = self.served.get(wanted.name)
        cdef Plan plan
        cdef MemoryStore store
        cdef KeyedLedgers keyed
        cdef Ledger ledger
        cdef long long numbers[4]
        cdef long long now, wait, left
        cdef double started, ended
        cdef bint denied, exact
        if served is None:
            return None
        plan = served.plan
        if plan is None or plan.config is not served.config or plan.limiter is not served.limiter:
            plan = served.plan = self.plan(served)
        if not plan.usual:
            return None
        if plan.limiter is None:
            return self.unlimited(plan, served)
        store = plan.limiter._store
        keyed = store.first
        if not plan.limiter._plain or plan.limiter._closed or store.closed or store.held or store.leased:
            return None
        if not store.single_rule and not (plan.wall and keyed.choose is None and len(store.keyed_ledgers) == 1):
            return None
        if not store.uncontended or (wanted.cost > plan.rule.capacity and wanted.cost != 1):
            return None
        started = self.moment()
        if not served.keys.admits(wanted.key, started):
            return None
        now = store.clock.wall() if plan.wall else store.clock.now()
        # A clock in Python lets other threads run: only from here on is it certain that the queue is empty.
        if not store.uncontended:
            return None
        # Swept before it is found: a fresh ledger is idle, and would be forgotten while it is being taken from.
        if keyed.countdown <= 0:
            keyed.sweep(now, now)
        ledger = keyed.find(wanted.key)
        if ledger.get_rule() is not plan.rule:
            served.plan = None  # the limit was set to another one
            return None
        wait = ledger.wait(now, wanted.cost)
        if plan.wall:
            # A new window was looked up in a calendar, perhaps, which lets other threads run; no more from here on.
            if not store.uncontended or keyed.peek(wanted.key) is not ledger or ledger.get_rule() is not plan.rule:
                return None
            wait = ledger.wait(now, wanted.cost)
        denied = wait > 0
        if denied:
            left = 0 if wanted.cost == 1 else ledger.remaining(now)
            store.counts.denied += 1
        else:
            ledger.take(now, wanted.cost)
            store.counts.granted += 1
            left = ledger.remaining(now)
            wait = ledger.wait(now, wanted.cost)  # of another one like this
        numbers[LEFT], numbers[RETRY] = left, wait
        numbers[RESET], numbers[OUT] = ledger.reset_after(now), ledger.in_flight(now)
        exact = ledger.exact(now, wanted.cost)
        ended = self.moment()
        if numbers[RESET] >= FOREVER:
            served.keys.note(wanted.key, ended + plan.unknown_reset)
        else:
            served.keys.note(wanted.key, ended + numbers[RESET] / <double> SECOND)
        self.count(plan, served, denied, ended - started)
        return self.written(plan, denied, numbers, exact)

    cdef double moment(self) except? -1:
        return monotonic() / <double> SECOND if self.system_clock else self.now()

    cdef bytes unlimited(self, Plan plan, ServedLimit served):
        cdef long long numbers[4]
        numbers[LEFT] = numbers[RETRY] = numbers[RESET] = numbers[OUT] = 0
        self.count(plan, served, False, 0.0)
        return self.written(plan, False, numbers, True)

    cdef int count(self, Plan plan, ServedLimit served, bint denied, double seconds) except -1:
        cdef Saying saying = plan.denied if denied else plan.granted
        if plan.figures is None:
            plan.figures = self.service.metrics.of(plan.name)
        if denied:
            served.denied += 1
            plan.figures.deny("limit", seconds, plan.shadow)
        else:
            served.granted += 1
            plan.figures.grant(seconds)
        self.answers[saying.status] = self.answers.get(saying.status, 0) + 1
        return 0

    cdef bytes written(self, Plan plan, bint denied, long long *numbers, bint exact):
        """The answer as it is sent."""
        cdef char out[ROOM]
        cdef char body[ROOM]
        cdef Py_ssize_t at, size
        cdef Saying saying = plan.denied if denied else plan.granted
        cdef long long known[6]
        cdef long long retry = numbers[RETRY], reset = numbers[RESET]
        if (
            not exact
            or numbers[LEFT] > MOST
            or not (retry == 0 or SHORT <= retry < LONG)
            or not (reset == 0 or SHORT <= reset < LONG)
            or saying.size + PyBytes_GET_SIZE(self.default_lines) > ROOM
        ):
            row = (plan.rule.limit, numbers[LEFT], retry, reset, 0, numbers[OUT], exact)
            found = standing_of_rows([row], plan.limiter._store.metrics, denied)
            return self.hot.written(said_at_once(plan.config, found, saying.reason), self.default_headers)
        memcpy(known, numbers, 4 * sizeof(long long))
        known[UNTIL] = ((retry if retry > 0 else reset) + SECOND - 1) // SECOND
        size = saying.body.write(body, 0, known)
        at = put(out, 0, saying.begin)
        at = put(out, at, self.default_lines)
        at = saying.head.write(out, at, known)
        at = put(out, at, LENGTH)
        at = put_number(out, at, size)
        at = put(out, at, saying.end)
        memcpy(out + at, body, size)
        return PyBytes_FromStringAndSize(out, at + size)

    # -- plans -------------------------------------------------------------------------------------------

    cdef Plan plan(self, ServedLimit served):
        """How a limit is decided from now on."""
        cdef Plan plan = Plan.__new__(Plan)
        config = served.config
        plan.config, plan.limiter, plan.name, plan.shadow = config, served.limiter, config.name, config.shadow
        plan.unknown_reset = max(UNKNOWN_RESET, config.lease)
        if plan.limiter is None:
            plan.granted = saying([(said_at_once(config, None, None), {})], None)
            plan.usual = plan.granted is not None
            return plan
        store = plan.limiter._store
        if store is None or len(store.keyed_ledgers) != 1 or store.first.choose is not None:
            return plan
        plan.rule = store.first.rule
        if plan.rule.spaced or plan.rule.held:
            return plan
        plan.wall = plan.rule.uses_wall_clock
        plan.granted = self.said(plan, store.metrics, None)
        plan.denied = self.said(plan, store.metrics, "limit")
        plan.usual = plan.granted is not None and plan.denied is not None
        return plan

    cdef Saying said(self, Plan plan, list metrics, reason):
        """How an answer is written: learned from two of the ordinary code, with numbers that are easily found in them."""
        made = []
        for number in (711_111_111_111_117, 911_111_111_111_119):
            retry, reset, out = number // 10**9 + 0.5, number // 10**8 + 0.25, number // 10**5
            row = (plan.rule.limit, number, int(retry * 1e9), int(reset * 1e9), 0, out, True)
            answer = said_at_once(plan.config, standing_of_rows([row], metrics, reason is not None), reason)
            slots = (LEFT, RETRY, RESET, OUT, UNTIL, WHEN)
            marks = (number, retry, reset, out, until(retry, reset), seconds_text(retry))
            made.append((answer, dict(zip([str(mark).encode() for mark in marks], slots))))
        return saying(made, reason)


cdef Saying saying(list made, reason):
    """How one thing is said; None where the texts are not told from the numbers, since a name has such a number in it."""
    cdef Saying found = Saying.__new__(Saying)
    answer, marks = made[0]
    head, body = parts(answer.head, marks), parts(answer.body, marks)
    for other, marks in made:
        if (parts(other.head, marks), parts(other.body, marks)) != (head, body):
            return None
    if max(len(head[1]), len(body[1])) > MOST_SLOTS:
        return None
    found.head, found.body = Text(*head), Text(*body)
    found.begin, found.status, found.reason = STATUS_LINE[answer.status], answer.status, reason
    found.end = b"\r\ncontent-type: %b\r\n\r\n" % answer.media_type.encode()
    found.size = len(found.begin) + found.head.size + len(LENGTH) + DIGITS + len(found.end) + found.body.size
    return found


def parts(text, marks):
    """The pieces of a text between marks, and what each mark stands for."""
    if not marks:
        return [text], []
    # The longer ones first: some begin with others.
    found = re.split(b"(%b)" % b"|".join(map(re.escape, sorted(marks, key=len, reverse=True))), text)
    return found[::2], [marks[mark] for mark in found[1::2]]


# -- numbers as text ---------------------------------------------------------------------------------------------


cdef inline Py_ssize_t put(char *out, Py_ssize_t at, bytes text) noexcept:
    memcpy(out + at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return at + PyBytes_GET_SIZE(text)


cdef Py_ssize_t put_number(char *out, Py_ssize_t at, long long number) noexcept:
    cdef char digits[24]
    cdef Py_ssize_t count = 0
    while True:
        digits[count] = <char> (48 + number % 10)
        number //= 10
        count += 1
        if number == 0:
            break
    while count:
        count -= 1
        out[at] = digits[count]
        at += 1
    return at


cdef Py_ssize_t put_seconds(char *out, Py_ssize_t at, long long ns) noexcept:
    """Seconds as JSON has them: with a point, and no more digits than are needed."""
    cdef long long rest = ns % SECOND, digit = SECOND // 10
    at = put_number(out, at, ns // SECOND)
    out[at] = 46
    at += 1
    while True:
        out[at] = <char> (48 + rest // digit)
        at += 1
        rest %= digit
        digit //= 10
        if rest == 0:
            return at


cdef Py_ssize_t put_when(char *out, Py_ssize_t at, long long ns) except -1:
    """Seconds as a person is told them: as `seconds_text` says."""
    cdef double seconds = ns / <double> SECOND
    cdef char *text
    cdef Py_ssize_t size
    if ns < IN_SECONDS:
        return put(out, at, seconds_text(seconds).encode())
    text = PyOS_double_to_string(seconds, b'f', 0, 0, NULL) if seconds >= 1000 else PyOS_double_to_string(seconds, b'g', 3, 0, NULL)
    size = strlen(text)
    memcpy(out + at, text, size)
    PyMem_Free(text)
    memcpy(out + at + size, b" s", 2)
    return at + size + 2
