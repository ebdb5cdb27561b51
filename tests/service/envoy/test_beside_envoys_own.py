"""Next to the real envoyproxy/ratelimit: the same files and the same requests, answer by answer.

`RULES` has the shapes of its own examples. With `fixed` every answer is the same: the codes, the limit that is told,
what remains. Where it is wrong, or differs, is stated by tests of its own.
"""

import asyncio
import time

import pytest

from headway.service.envoy import calls
from headway.service.envoy.client_codec import decode_response, encode_request
from headway.service.envoy.config import read_config
from headway.service.envoy.decide import RateLimitService
from service.envoy.asking import OK, OVER, codes, descriptor, remaining, request
from service.envoy.peers import ENVOYS_OWN, envoys_own, needs_peer
from waiting import NEVER

grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install grpcio")
pytestmark = [needs_peer(ENVOYS_OWN, "ratelimit"), pytest.mark.realtime, pytest.mark.slow]

RULES = """
domain: d
descriptors:
  - key: category
    value: account
    rate_limit: {unit: minute, requests_per_unit: 4, replaces: [{name: narrow}, {name: other}]}
  - key: from
    value: proxy
    descriptors:
      - key: to
        value: narrow
        rate_limit: {unit: minute, requests_per_unit: 2, replaces: [{name: narrow}]}
      - key: to
        value: single
        rate_limit: {unit: hour, requests_per_unit: 1}
      - key: to
        value: opened
        rate_limit: {unit: minute, requests_per_unit: 2, replaces: [{name: banned}]}
      - key: to
        value: other
        rate_limit: {unit: minute, requests_per_unit: 2, name: other}
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
    descriptors:
      - key: path
        rate_limit: {unit: hour, requests_per_unit: 3}
      - key: path
        value: narrow
        rate_limit: {unit: minute, requests_per_unit: 1, name: narrow}
      - key: path
        value: banned
        rate_limit: {unit: minute, requests_per_unit: 0, name: banned}
      - key: call
        value: shadow
        rate_limit: {unit: day, requests_per_unit: 1}
        shadow_mode: true
      - key: call
        rate_limit: {unlimited: true}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: free
    rate_limit: {unlimited: true}
  - key: file
    value: "img/*"
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: file
    value: "docs/*"
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 3}
"""
SECOND_DOMAIN = """
domain: databases
descriptors:
  - {key: database, value: users, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: database, value: default, rate_limit: {unit: hour, requests_per_unit: 2}}
"""
EDGES = """
domain: edges
descriptors:
  - {key: user, rate_limit: {unit: second, requests_per_unit: 5}}
"""
TEXTS = {"rules.yaml": RULES, "databases.yaml": SECOND_DOMAIN, "edges.yaml": EDGES}

# Each is sent so many times, one after another.
CASES = [
    (4, request("category=account")),
    (2, request("category=other")),
    (3, request(descriptor("from=proxy", "to=narrow"))),
    (2, request(descriptor("from=proxy", "to=single"))),
    (2, request(descriptor("from=proxy", "to=unknown"))),
    (2, request(descriptor("from=elsewhere", "to=single"))),
    (2, request(descriptor("from=proxy"))),
    (3, request("user=a")),
    (3, request("user=b")),
    (4, request(descriptor("user=a", "path=/x"))),
    (2, request(descriptor("user=a", "path=narrow"))),
    (2, request(descriptor("user=a", "path=banned"))),
    (2, request(descriptor("user=a", "path=/x", "more=1"))),
    (3, request(descriptor("user=a", "call=shadow"))),
    (3, request(descriptor("user=a", "call=any"))),
    # The second descriptor's rule is replaced by the first one's, and is not asked.
    (3, request("category=account2", descriptor("user=c", "path=narrow"))),
    (3, request(descriptor("from=proxy", "to=opened"), descriptor("user=c", "path=banned"))),
    (3, request("detailed=x")),
    (3, request("free=x")),
    (3, request("file=img/1")),
    (3, request("file=img/2")),
    (2, request("file=docs/1")),
    (2, request("file=docs/2")),
    (2, request("file=other")),
    (4, request(descriptor("database=users"), domain="databases")),
    (3, request(descriptor("database=default"), domain="databases")),
    (2, request(descriptor("database=users"), domain="unknown")),
    # Several hits, two descriptors that both pass, a limit that the request brings along.
    (2, request("user=d", hits_addend=1)),
    (2, request("user=e", "detailed=e")),
]


class Own:
    """The real one, over gRPC."""

    def __init__(self, port):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)])
        self.call = self.channel.unary_unary(calls.SHOULD_RATE_LIMIT)

    def ask(self, asked):
        return decode_response(self.call(encode_request(asked), timeout=NEVER, wait_for_ready=True))


class Ours:
    def __init__(self, **options):
        config = read_config(TEXTS, **options)
        self.service = RateLimitService(config, namespace=f"beside-{id(self)}")

    def ask(self, asked):
        return asyncio.run(self.service.decide(asked))


def shown(response):
    """What has to be equal: but what remains of a limit that denies, which is 0 there whatever was asked for."""
    return response.overall_code, [
        (status.code, status.current_limit, status.limit_remaining) for status in response.statuses
    ]


def stay_within_a_minute(seconds=15):
    """Both count from zero with every minute of the clock, which must not come in between."""
    left = 60 - time.time() % 60
    if left < seconds:
        time.sleep(left + 0.1)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    with envoys_own(tmp_path_factory.mktemp("own"), TEXTS) as port:
        found = Own(port)
        yield found
        found.channel.close()


def test_every_answer_is_the_same(own):
    ours = Ours(fixed=True)
    stay_within_a_minute()
    for times, asked in CASES:
        theirs = [shown(own.ask(asked)) for _ in range(times)]
        assert [shown(ours.ask(asked)) for _ in range(times)] == theirs, asked


def test_where_it_charges_what_it_denies_we_do_not(own):
    """A request that one descriptor denies: there the other one is charged all the same."""
    ours = Ours(fixed=True)
    stay_within_a_minute()
    both = request("user=f", descriptor("user=f", "path=banned"))
    for service in (own, ours):
        assert [service.ask(both).overall_code for _ in range(2)] == [OVER, OVER]
    assert codes(own.ask(request("user=f"))) == [OVER]
    assert codes(ours.ask(request("user=f"))) == [OK]


def test_where_more_is_asked_for_than_is_left_we_say_what_is_left(own):
    ours = Ours(fixed=True)
    stay_within_a_minute()
    many = request("user=g", hits_addend=3)
    assert (own.ask(many).overall_code, ours.ask(many).overall_code) == (OVER, OVER)
    assert (remaining(own.ask(many)), remaining(ours.ask(many))) == ([0], [2])


def test_where_it_passes_twice_the_limit_around_an_edge_we_pass_it_once(own):
    """The last moments of a second, and the first ones of the next."""
    asked = request("user=edge", domain="edges")
    ours, fixed = Ours(), Ours(fixed=True)
    for _ in range(20):
        left = 1 - time.time() % 1
        time.sleep(left + 0.85)
        begin = time.time()
        passed = dict.fromkeys((own, ours, fixed), 0)
        for service in passed:
            passed[service] += sum(service.ask(asked).overall_code == OK for _ in range(5))
        edge = time.time() // 1 == begin // 1
        time.sleep(max(0.0, begin // 1 + 1.005 - time.time()))
        for service in passed:
            passed[service] += sum(service.ask(asked).overall_code == OK for _ in range(5))
        if edge and time.time() - begin < 0.8:  # a busy machine may need several tries
            break
        asked = request(f"user=edge-{begin}", domain="edges")
    else:
        pytest.fail("the machine is too busy to meet the edge of a second")
    assert list(passed.values()) == [10, 5, 10]
