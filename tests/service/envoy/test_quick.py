"""The compiled step against `decide`: the same answers, ledgers and figures for every request, in virtual time."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.service.envoy.calls import should_rate_limit
from headway.service.envoy.client_codec import decode_response, encode_request
from headway.service.envoy.messages import RateLimitRequest
from headway.testing import ManualClock
from service.envoy.asking import OK, OVER, codes, descriptor, remaining, request, service_of

quick = pytest.importorskip(
    "headway.service.envoy.quick", reason="needs the compiled form: apt-get install gcc libc6-dev"
)

RULES = """  - {key: user, rate_limit: {unit: minute, requests_per_unit: 3, name: users}}
  - {key: user, value: vip, rate_limit: {unit: second, requests_per_unit: 40}}
  - {key: path, rate_limit: {unit: second, requests_per_unit: 2}, shadow_mode: true}
  - {key: all, limit: "4/s burst 6"}
  - {key: slow, limit: "1 every 2s"}
  - {key: both, limit: "2/s; 5/minute"}
  - {key: none, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: spent, limit: "3/minute", overdraft: true}
  - {key: host, value: "*.org", detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 5}}
"""
KEYS = ["user", "path", "all", "slow", "both", "none", "free", "spent", "host", "nothing"]
descriptors = st.builds(
    lambda key, value, hits: descriptor(f"{key}={value}", hits_addend=hits),
    st.sampled_from(KEYS),
    st.sampled_from(["a", "b", "vip", "x.org"]),
    st.none() | st.integers(0, 4),
)
requests = st.builds(
    lambda parts, hits: RateLimitRequest("d", tuple(parts), hits),
    st.lists(descriptors, min_size=1, max_size=4),
    st.sampled_from([0, 0, 0, 2]),
)
steps = st.lists(st.tuples(requests, st.sampled_from([0.0, 0.0, 0.001, 0.3, 2.0, 61.0])), max_size=30)


def pair(fixed=False, rules=RULES, **options):
    """Two services of equal rules on one clock: one that may be quick, and one that may not."""
    clock = ManualClock()
    both = [service_of(rules, clock=clock, fixed=fixed, **options) for _ in range(2)]
    both[1].quick = None
    return clock, *both


def answer(service, asked):
    data = encode_request(asked)
    found = None if service.quick is None else service.quick(data)
    return asyncio.run(should_rate_limit(service, data)).message if found is None else found


def figures(service):
    return {sample for sample in service.stats.samples() if sample.value}


@pytest.mark.parametrize("fixed", [False, True])
@settings(max_examples=60)
@given(trace=steps)
def test_the_compiled_step_answers_counts_and_takes_as_decide_does(fixed, trace):
    clock, first, second = pair(fixed, max_keys=3)
    for asked, pause in trace:
        assert decode_response(answer(first, asked)) == decode_response(answer(second, asked))
        clock.advance(pause)
    assert figures(first) == figures(second)


def test_the_usual_requests_are_decided_in_the_compiled_step_and_others_are_not():
    _, service, _ = pair()
    usual = [
        request("user=a"),
        request("user=a", "all=1"),
        request("path=/"),
        request("nothing=1"),
        request("host=a.org"),
    ]
    for asked in usual:
        assert service.quick(encode_request(asked)) is not None, asked
    assert service.quick.requests == len(usual)
    other = [
        request("slow=1"), request("both=1"), request("free=1"), request("spent=1"), request(),
        request("user=b", "user=b"),  # one ledger twice
        request(descriptor("user=b", hits_addend=0)),
        request(descriptor("user=b", hits_addend=1, is_negative_hits=True)),
        request("user=b", hits_addend=4),
    ]  # fmt: skip
    for asked in other:
        for _ in range(2):
            assert service.quick(encode_request(asked)) is None, asked
    assert service.quick(b"\xff") is None
    assert service.quick.requests == len(usual)


def test_a_fixed_window_is_decided_there_too():
    _, service, _ = pair(fixed=True)
    assert [codes(decode_response(service.quick(encode_request(request("user=a"))))) for _ in range(4)] == [
        [OK], [OK], [OK], [OVER],
    ]  # fmt: skip


def test_what_was_taken_there_can_be_refunded():
    _, service, _ = pair()
    for _ in range(3):
        answer(service, request("user=a"))
    assert decode_response(answer(service, request("user=a"))).overall_code == OVER
    back = request(descriptor("user=a", hits_addend=2, is_negative_hits=True))
    assert remaining(decode_response(answer(service, back))) == [2]
    found = [decode_response(answer(service, request("user=a"))).overall_code for _ in range(3)]
    assert found == [OK, OK, OVER]


def test_another_configuration_is_followed():
    from headway.service.envoy.config import read_config

    _, service, _ = pair()
    ask = request("user=a")
    assert [remaining(decode_response(answer(service, ask))) for _ in range(2)] == [[2], [1]]
    rules = RULES.replace("requests_per_unit: 3", "requests_per_unit: 9")
    service.use(read_config({"limits.yaml": f"domain: d\ndescriptors:\n{rules}"}))
    assert remaining(decode_response(service.quick(encode_request(ask)))) == [6]
    service.close()
    assert service.quick is None


def test_plans_are_bounded_and_long_requests_are_not_kept(monkeypatch):
    _, service, _ = pair()
    asked = [encode_request(request(f"user={n}")) for n in range(3 * quick.MOST_PLANS)]
    for data in asked:
        assert service.quick(data) is not None
    assert service.quick.plans <= 2 * quick.MOST_PLANS
    before = service.quick.plans
    assert service.quick(encode_request(request("user=" + "a" * quick.LONGEST))) is not None
    assert service.quick.plans == before


def test_a_fresh_ledger_is_not_forgotten_between_finding_it_and_taking_from_it():
    """Two new keys of one rule in one request, at the moment at which idle keys are looked for."""
    clock, first, second = pair()
    for n in range(200):
        asked = request(f"user=left-{n}", f"user=right-{n}")
        for service in (first, second):
            assert decode_response(answer(service, asked)).overall_code == OK
        clock.advance(61.0)
        for service in (first, second):
            assert remaining(decode_response(answer(service, asked))) == [2, 2]
            assert remaining(decode_response(answer(service, asked))) == [1, 1]
