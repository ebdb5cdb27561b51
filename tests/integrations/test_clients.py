"""Every client integration against a real server that enforces a sliding window by its own clock."""

import socket

import pytest

from headway import InvalidArgument, Limiter, RateLimited
from headway.integrations.outbound import Outbound
from integrations.clients import CLIENTS
from integrations.own_process import StrictServer

pytestmark = pytest.mark.slow


@pytest.fixture(params=list(CLIENTS))
def calls(request):
    """calls(limit, urls, **options): the statuses of calls that are made at once."""
    return CLIENTS[request.param]


@pytest.mark.realtime
def test_two_hundred_calls_at_once_are_never_refused(calls):
    with StrictServer(50, 0.5) as server:
        statuses = calls("50/500ms", [f"{server.url}/{number}" for number in range(200)])
        figures = server.figures()
    assert statuses == [200] * 200
    assert (figures["served"], figures["refused"]) == (200, 0)


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("client", "says"),
    [
        *((client, "x") for client in CLIENTS),
        *((client, says) for client in ("aiohttp", "requests") for says in ("ietf", "retry-after")),
    ],
)
def test_a_limit_that_is_halved_costs_one_round_of_refusals_at_most(client, says):
    """Whether the remote states the lower limit, or tells nothing but when to come back."""
    with StrictServer(20, 2, says, halve_after=30) as server:
        statuses = CLIENTS[client]("20/2s", [f"{server.url}/{number}" for number in range(45)], retries=5)
        figures = server.figures()
    assert statuses == [200] * 45
    # Only calls that were on their way when the limit was halved.
    assert figures["refused"] <= 20
    assert figures["last_refused"] <= 30 + 20


def test_a_redirect_is_another_call(calls):
    with StrictServer(10, 1) as server:
        limiter = Limiter("10/hour")
        assert calls(limiter, [f"{server.url}/redirect"]) == [200]
        assert limiter.peek().remaining == 8
        assert server.figures()["served"] == 2


def test_a_connection_that_is_refused_gives_its_permit_back(calls):
    seen = []
    limiter = Limiter("10/hour", on_event=lambda event: seen.append(event.kind))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(Exception, match=r"(?i)connect|refused"):
            calls(limiter, [url])
    assert seen == ["granted", "cancelled"]
    assert limiter.peek().remaining == 10


def test_a_call_that_is_refused_pauses_the_limiter(calls):
    with StrictServer(1, 60, "retry-after") as server:
        limiter = Limiter("100/hour")
        assert sorted(calls(limiter, [f"{server.url}/a", f"{server.url}/b"])) == [200, 429]
        denied = limiter.try_acquire()
    assert not denied
    assert denied.reason == "paused"


def test_feedback_can_be_turned_off(calls):
    with StrictServer(1, 60, "retry-after") as server:
        limiter = Limiter("100/hour")
        assert sorted(calls(limiter, [f"{server.url}/a", f"{server.url}/b"], feedback=False)) == [200, 429]
        assert limiter.try_acquire()


def test_a_permit_that_does_not_come_in_time_is_an_error_and_nothing_is_sent(calls):
    with StrictServer(10, 1) as server:
        limiter = Limiter("1/hour")
        assert limiter.try_acquire()
        with pytest.raises(RateLimited):
            calls(limiter, [server.url], timeout=0.05)
        assert server.figures()["served"] == 0


def test_hosts_have_limits_and_ledgers_of_their_own(calls):
    with StrictServer(10, 1) as server, StrictServer(10, 1) as free:
        limiter = Limiter("1/hour")
        other = free.url.replace("127.0.0.1", "localhost")
        limits = {"127.0.0.1": limiter, "*": None}
        assert calls(limits, [server.url, other, other]) == [200, 200, 200]
        with pytest.raises(RateLimited):
            calls(limits, [server.url], timeout=0)


def test_key_cost_and_settle_see_the_request_and_the_answer(calls):
    with StrictServer(100, 1) as server:
        limiter = Limiter("100/hour", remote=False)
        keys = []

        def key(request):
            keys.append(str(request.url))
            return "alice"

        calls(limiter, [f"{server.url}/"], key=key, cost=lambda request: 20, settle=lambda response: 5)
    assert keys == [f"{server.url}/"]
    assert limiter.peek("alice").remaining == 95
    assert limiter.peek("bob").remaining == 100


# -- without a server -----------------------------------------------------------------------------------------


def test_a_pattern_names_the_longest_end_of_a_host():
    outbound = Outbound({"api.x.org": "1/s", "*.x.org": "2/s", "*.y.x.org": "3/s"})
    hosts = ["api.x.org", "API.X.ORG.", "www.x.org", "a.b.x.org", "a.y.x.org", "x.org", "evilx.org"]
    assert [outbound.pattern_of(host) for host in hosts] == [
        "api.x.org", "api.x.org", "*.x.org", "*.x.org", "*.y.x.org", None, None,
    ]  # fmt: skip
    assert outbound.call("x.org", None) is None


@pytest.mark.parametrize("pattern", ["https://x.org", "x.org:80", "a*.org", "x.*", "user@x.org", 5])
def test_a_pattern_that_is_no_host_is_refused(pattern):
    with pytest.raises(InvalidArgument, match="is not accepted; give hosts such as"):
        Outbound({pattern: "1/s"})


@pytest.mark.parametrize("retries", [-1, 1.5, True, "2"])
def test_retries_that_are_no_count_are_refused(retries):
    with pytest.raises(InvalidArgument, match="retries="):
        Outbound("1/s", retries=retries)


def test_options_beside_a_limiter_are_refused():
    with pytest.raises(InvalidArgument, match="a Limiter without engine"):
        Outbound(Limiter("1/s"), engine="memory://")


def test_what_may_be_sent_again():
    from headway.feedback import Feedback

    refused = Feedback(refused=True, wait=1)
    call = Outbound("10/s", retries=1).call("x.org", None)
    assert call is not None
    with call.hold():
        pass
    assert call.repeats(refused, 429, "POST", replayable=True)
    assert call.repeats(refused, 503, "GET", replayable=True)
    assert not call.repeats(refused, 503, "POST", replayable=True)
    assert not call.repeats(refused, 429, "POST", replayable=False)
    assert not call.repeats(Feedback(refused=False, wait=None), 200, "GET", replayable=True)
    with call.hold():
        pass
    assert not call.repeats(refused, 429, "GET", replayable=True)
