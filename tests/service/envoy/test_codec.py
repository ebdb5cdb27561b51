"""Envoy's messages to bytes and back, against protobuf's own runtime in both directions, and garbage."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import HeadwayError
from headway.service.envoy import codec
from headway.service.envoy.client_codec import decode_response, encode_request
from headway.service.envoy.codec import decode_request, encode_response
from headway.service.envoy.messages import (
    CurrentLimit,
    Descriptor,
    DescriptorStatus,
    Entry,
    Header,
    LimitOverride,
    MalformedMessage,
    Quota,
    RateLimitRequest,
    RateLimitResponse,
)
from headway.service.envoy.wire import bytes_field, number_field, varint

protobuf = pytest.importorskip("google.protobuf.message", reason="needs protobuf: pip install protobuf")
from service.envoy.rls_protos import Request, Response  # noqa: E402 - after the check

SECOND = 10**9
uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
enums = st.integers(-(2**31), 2**31 - 1) | st.integers(0, 7)
text = st.text(max_size=20)

entries = st.builds(Entry, text, text)
overrides = st.builds(LimitOverride, uint32, enums)
descriptors = st.builds(
    Descriptor,
    st.lists(entries, max_size=4).map(tuple),
    st.none() | overrides,
    st.none() | uint64,
    st.booleans(),
)
requests = st.builds(RateLimitRequest, text, st.lists(descriptors, max_size=4).map(tuple), uint32)

limits = st.builds(CurrentLimit, uint32, enums, text)
quotas = st.builds(Quota, uint32, st.none() | st.integers(0, 2**62), text)
statuses = st.builds(
    DescriptorStatus, enums, st.none() | limits, uint32, st.none() | st.integers(0, 2**62), st.none() | quotas
)
headers = st.builds(Header, text, text, st.binary(max_size=9))
responses = st.builds(
    RateLimitResponse,
    enums,
    st.lists(statuses, max_size=4).map(tuple),
    st.lists(headers, max_size=2).map(tuple),
    st.lists(headers, max_size=2).map(tuple),
    st.binary(max_size=9),
    st.none() | st.just(b"") | st.just(bytes.fromhex("0a070a0161120230 01".replace(" ", ""))),
    st.none() | quotas,
)


def request_of(proto):
    """What the runtime has read, as our values."""
    return RateLimitRequest(
        proto.domain,
        tuple(
            Descriptor(
                tuple(Entry(entry.key, entry.value) for entry in each.entries),
                LimitOverride(each.limit.requests_per_unit, each.limit.unit)
                if each.HasField("limit")
                else None,
                each.hits_addend.value if each.HasField("hits_addend") else None,
                each.is_negative_hits,
            )
            for each in proto.descriptors
        ),
        proto.hits_addend,
    )


def time_of(proto, field):
    time = getattr(proto, field)
    return time.seconds * SECOND + time.nanos if proto.HasField(field) else None


def quota_of(proto):
    quota = proto.quota
    return Quota(quota.requests, time_of(quota, "valid_until"), quota.id) if proto.HasField("quota") else None


def response_of(proto):
    def limit(each):
        own = each.current_limit
        return (
            CurrentLimit(own.requests_per_unit, own.unit, own.name)
            if each.HasField("current_limit")
            else None
        )

    def added(headers):
        return tuple(Header(each.key, each.value, each.raw_value) for each in headers)

    return RateLimitResponse(
        proto.overall_code,
        tuple(
            DescriptorStatus(
                each.code,
                limit(each),
                each.limit_remaining,
                time_of(each, "duration_until_reset"),
                quota_of(each),
            )
            for each in proto.statuses
        ),
        added(proto.response_headers_to_add),
        added(proto.request_headers_to_add),
        proto.raw_body,
        proto.dynamic_metadata.SerializeToString() if proto.HasField("dynamic_metadata") else None,
        quota_of(proto),
    )


# -- both ways, by the real runtime --------------------------------------------------------------------------------


@given(requests)
def test_the_runtime_reads_what_the_codec_writes_of_a_request(request):
    assert request_of(Request.FromString(encode_request(request))) == request


@given(requests)
def test_the_codec_reads_what_the_runtime_writes_of_a_request(request):
    data = Request.FromString(encode_request(request)).SerializeToString()
    assert decode_request(data) == request


@given(responses)
def test_the_runtime_reads_what_the_codec_writes_of_a_response(response):
    assert response_of(Response.FromString(encode_response(response))) == response


@given(responses)
def test_the_codec_reads_what_the_runtime_writes_of_a_response(response):
    data = Response.FromString(encode_response(response)).SerializeToString()
    assert decode_response(data) == response


# -- what no well-meaning client sends -----------------------------------------------------------------------------


def varint_fields():
    return st.builds(lambda number, value: varint(number << 3) + varint(value), st.integers(1, 9), uint64)


def fixed_fields():
    def fixed(kind, size):
        value = st.binary(min_size=size, max_size=size)
        return st.builds(lambda number, value: varint(number << 3 | kind) + value, st.integers(1, 9), value)

    return fixed(1, 8) | fixed(5, 4)


def rows(inner):
    """Rows of fields: of each wire type, known and unknown numbers, messages within messages, and groups."""
    nested = st.builds(bytes_field, st.integers(1, 9), inner)
    groups = st.builds(
        lambda number, body: varint(number << 3 | 3) + body + varint(number << 3 | 4),
        st.integers(1, 9),
        inner,
    )
    return st.lists(varint_fields() | fixed_fields() | nested | groups, max_size=5).map(b"".join)


messy = st.recursive(st.binary(max_size=6) | st.just(b""), rows, max_leaves=12)


def by_runtime(kind, convert, data):
    try:
        return convert(kind.FromString(data))
    except protobuf.DecodeError:
        return MalformedMessage


def by_codec(decode, data):
    try:
        return decode(data)
    except MalformedMessage:
        return MalformedMessage


@settings(max_examples=500)
@given(messy)
def test_the_codec_and_the_runtime_agree_on_any_request(data):
    assert by_codec(decode_request, data) == by_runtime(Request, request_of, data)


@settings(max_examples=500)
@given(st.binary(max_size=40))
def test_the_codec_and_the_runtime_agree_on_garbage(data):
    assert by_codec(decode_request, data) == by_runtime(Request, request_of, data)


@settings(max_examples=400)
@given(messy)
def test_the_codec_and_the_runtime_agree_on_any_response(data):
    ours = by_codec(decode_response, data)
    theirs = by_runtime(Response, response_of, data)
    if ours is not MalformedMessage and ours.dynamic_metadata is not None:
        # The codec does not look into it; the runtime does, and writes it in its own order.
        if theirs is MalformedMessage:
            return
        ours, theirs = ours._replace(dynamic_metadata=b""), theirs._replace(dynamic_metadata=b"")
    assert ours == theirs


@settings(max_examples=150)
@given(requests, st.data())
def test_a_request_that_is_cut_or_changed_is_read_or_malformed(request, data):
    whole = encode_request(request)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    changed = bytearray(whole)
    if changed:
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    for broken in (cut, bytes(changed)):
        assert by_codec(decode_request, broken) == by_runtime(Request, request_of, broken)


# -- single rules --------------------------------------------------------------------------------------------------


def test_the_bytes_that_an_envoy_has_sent_are_read():
    """Captured from Envoy 1.40 with examples/envoy: 100 hits before a call, and a refund of 70 after it."""
    begin = "0a0473686f7012{}0a0e0a06746f6b656e731204757365640a0d0a04757365721205616c696365{}"
    for data, hits, negative in (
        (begin.format("23", "1a020864"), 100, False),
        (begin.format("25", "1a0208462001"), 70, True),
    ):
        entries = (Entry("tokens", "used"), Entry("user", "alice"))
        request = RateLimitRequest("shop", (Descriptor(entries, None, hits, negative),))
        assert decode_request(bytes.fromhex(data)) == request
        assert encode_request(request).hex() == data


def test_an_empty_wrapper_is_an_explicit_zero():
    (descriptor,) = decode_request(bytes_field(2, bytes_field(3, b""))).descriptors
    assert descriptor.hits_addend == 0
    assert decode_request(bytes_field(2, b"")).descriptors[0].hits_addend is None


def test_a_message_that_comes_twice_is_merged():
    count, unit = bytes_field(2, number_field(1, 7)), bytes_field(2, number_field(2, 3))
    (descriptor,) = decode_request(bytes_field(2, count + unit)).descriptors
    assert descriptor.limit == LimitOverride(7, 3)


@pytest.mark.parametrize(
    "data",
    [
        bytes_field(2, bytes_field(3, number_field(1, 9)) + bytes_field(3, b"")),
        bytes_field(2, bytes_field(3, number_field(1, 9)) + bytes_field(3, number_field(1, 4))),
        b"\x18" + b"\x80" * 9 + b"\x00",
        b"\x18" + b"\x80" * 10 + b"\x00",
        b"\x18" + b"\xff" * 9 + b"\x7f",
        b"\x98\x80\x80\x80\x00\x07",
        b"\x98\x80\x80\x80\x80\x00\x07",
    ],
    ids=bytes.hex,
)
def test_rare_encodings_mean_what_they_mean_to_the_runtime(data):
    assert by_codec(decode_request, data) == by_runtime(Request, request_of, data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff" * 11, "longer than 10 bytes"),
        (b"\x0a", "ends within a varint"),
        (b"\x0a\x05ab", "longer than its message"),
        (b"\x0a\x01\xff", "not UTF-8"),
        (b"\x00", "no field has such a tag"),
        (b"\x0c", "a group ends that did not begin"),
        (b"\x0e", "no wire type 6"),
        (b"\x2d\x00", "ends within a field"),
        (b"\x23", "ends within a group"),
        (b"\x23" * 200, "more than 100 groups"),
        (bytes_field(1, b"d" * (codec.MAX_TEXT + 1)), "16385 bytes"),
        (bytes_field(2, b"") * (codec.MAX_DESCRIPTORS + 1), "more than 100 descriptors"),
        (bytes_field(2, bytes_field(1, b"") * (codec.MAX_ENTRIES + 1)), "more than 100 entries"),
        (b"\x0a\x00" * codec.MAX_MESSAGE, "a request of 524288 bytes"),
    ],
)
def test_what_is_wrong_is_said(data, problem):
    with pytest.raises(MalformedMessage, match=problem) as caught:
        decode_request(data)
    assert isinstance(caught.value, HeadwayError)


def test_a_request_at_its_bounds_is_read():
    entry = Entry("k" * 100, "v" * 100)
    request = RateLimitRequest("d" * codec.MAX_TEXT, (Descriptor((entry,) * codec.MAX_ENTRIES),))
    assert decode_request(encode_request(request)) == request
    many = RateLimitRequest("d", (Descriptor((entry,)),) * codec.MAX_DESCRIPTORS)
    assert decode_request(encode_request(many)) == many
