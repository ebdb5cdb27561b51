"""The decision, in virtual time: hits, all or nothing, statuses, overrides, shadow mode, and other configurations."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import InvalidArgument, LimiterClosed, Permit
from headway.service.envoy.config import read_config
from headway.service.envoy.decide import RateLimitService
from headway.service.envoy.messages import (
    MAX_UINT32,
    CurrentLimit,
    DescriptorStatus,
    LimitOverride,
    MalformedMessage,
    Unit,
)
from headway.testing import ManualClock
from service.envoy.asking import OK, OVER, ask, codes, descriptor, passed, remaining, request, service_of

SECOND = 10**9
KEYS = ["user=a", "user=b", "path=x"]
USERS = "  - {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}"
TWO = """
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5, name: users}}
  - {key: path, rate_limit: {unit: second, requests_per_unit: 2}}
"""


@pytest.fixture
def clock():
    return ManualClock()


# -- the answer ----------------------------------------------------------------------------------------------------


def test_requests_are_over_the_limit_from_the_next_one_on(clock):
    service = service_of(USERS, clock=clock)
    assert [ask(service, "user=a").overall_code for _ in range(5)] == [OK, OK, OK, OVER, OVER]
    assert ask(service, "user=b").overall_code is OK
    clock.advance(60)
    assert passed(service, "user=a", 5) == 3


def test_a_status_has_the_limit_what_remains_and_the_reset(clock):
    service = service_of(TWO, clock=clock)
    ask(service, "user=a")
    clock.advance(10)
    limit = CurrentLimit(5, Unit.MINUTE, "users")
    (status,) = ask(service, "user=a").statuses
    assert status == DescriptorStatus(OK, limit, 3, 60 * SECOND)
    ask(service, "user=a", hits_addend=3)
    (status,) = ask(service, "user=a").statuses
    assert status == DescriptorStatus(
        OVER, limit, 0, 50 * SECOND
    )  # the first of them is over a minute old by then


def test_what_no_rule_matches_is_ok(clock):
    service = service_of(TWO, clock=clock)
    response = ask(service, "other=x", "user=a", descriptor("user=a", "path=b"))
    assert response.statuses[0] == response.statuses[2] == DescriptorStatus(OK)
    assert remaining(response) == [0, 4, 0]
    assert ask(service, "user=a", domain="elsewhere").statuses == (DescriptorStatus(OK),)


def test_statuses_keep_order_and_number(clock):
    service = service_of(TWO, clock=clock)
    response = ask(service, "path=x", "none=1", "user=a", "path=z", "path=y", "none=2", "user=b")
    assert remaining(response) == [1, 0, 4, 1, 1, 0, 4]


@pytest.mark.parametrize(("domain", "descriptors"), [("", ["user=a"]), ("d", [])])
def test_a_request_without_domain_or_descriptors_makes_no_sense(clock, domain, descriptors):
    with pytest.raises(MalformedMessage):
        ask(service_of(USERS, clock=clock), *descriptors, domain=domain)


# -- hits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_request", "of_descriptor", "taken"),
    [(0, None, 1), (1, None, 1), (3, None, 3), (3, 2, 2), (0, 2, 2), (3, 0, 0), (0, 0, 0)],
)
def test_hits_of_a_request_and_of_a_descriptor(clock, of_request, of_descriptor, taken):
    service = service_of("  - {key: user, limit: 10/minute}", clock=clock)
    response = ask(service, descriptor("user=a", hits_addend=of_descriptor), hits_addend=of_request)
    assert (response.overall_code, remaining(response)) == (OK, [10 - taken])
    assert remaining(ask(service, descriptor("user=a", hits_addend=0))) == [10 - taken]


def test_a_look_is_over_the_limit_when_nothing_is_left(clock):
    service = service_of(USERS, clock=clock)
    look = descriptor("user=a", hits_addend=0)
    assert ask(service, look).overall_code is OK
    ask(service, "user=a", hits_addend=3)
    response = ask(service, look)
    assert (response.overall_code, response.statuses[0].duration_until_reset_ns) == (OVER, 60 * SECOND)


@pytest.mark.parametrize("hits", [4, 5, 2**32 - 1, 2**62, 2**62 + 1, 2**64 - 1])
def test_hits_above_the_limit_are_over_it_and_consume_nothing(clock, hits):
    service = service_of(USERS, clock=clock)
    response = ask(service, descriptor("user=a", hits_addend=hits))
    assert (response.overall_code, remaining(response)) == (OVER, [3])
    assert passed(service, "user=a", 9) == 3


def test_hits_that_do_not_fit_any_more_consume_nothing(clock):
    service = service_of(USERS, clock=clock)
    ask(service, "user=a", hits_addend=2)
    response = ask(service, "user=a", hits_addend=2)
    assert (response.overall_code, remaining(response)) == (OVER, [1])
    assert ask(service, "user=a").overall_code is OK


@pytest.mark.parametrize("hits", [1, 2, 2**64 - 1])
def test_a_limit_of_zero_denies_everything(clock, hits):
    service = service_of("  - {key: user, rate_limit: {unit: day, requests_per_unit: 0}}", clock=clock)
    response = ask(service, descriptor("user=a", hits_addend=hits))
    assert response.overall_code is OVER
    assert response.statuses[0].current_limit == CurrentLimit(0, Unit.DAY)


# -- all or nothing ------------------------------------------------------------------------------------------------


def test_a_denied_request_consumes_nothing(clock):
    service = service_of(TWO, clock=clock)
    assert passed(service, "path=x", 2) == 2
    for order in (("user=a", "path=x"), ("path=x", "user=a")):
        response = ask(service, *order)
        assert response.overall_code is OVER
        assert sorted(zip(codes(response), remaining(response), strict=True)) == [(OK, 5), (OVER, 0)]
    clock.advance(1)
    assert remaining(ask(service, "user=a", "path=x")) == [4, 1]


def test_two_descriptors_of_one_ledger_take_both_or_none(clock):
    service = service_of(USERS, clock=clock)
    response = ask(service, "user=a", "user=a", "user=a", "user=a")
    assert (codes(response), remaining(response)) == ([OK, OK, OK, OVER], [3, 3, 3, 0])
    assert passed(service, "user=a", 9) == 3


def test_a_bucket_has_no_trace_of_a_denied_request(clock):
    service = service_of('  - {key: user, limit: "1/s burst 5"}\n  - {key: path, limit: 0/s}', clock=clock)
    for _ in range(3):
        ask(service, "user=a", "user=a", "path=x", descriptor("user=a", hits_addend=3))
    assert passed(service, "user=a", 9) == 5


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.sampled_from(["user=a", "user=b", "path=x"]), st.integers(0, 4)),
                min_size=1,
                max_size=4,
            ),
            st.floats(0, 0.7),
        ),
        max_size=25,
    )
)
def test_what_passed_is_within_every_limit_and_what_was_denied_is_not_counted(steps):
    """Against a list of times: each window of each key is looked at, with what passed and nothing else."""
    clock = ManualClock()
    service = service_of(TWO, clock=clock)
    limits = {"user=a": (5, 60), "user=b": (5, 60), "path=x": (2, 1)}
    taken: dict[str, list[float]] = {key: [] for key in limits}
    now = 0.0
    for asked, wait in steps:
        response = ask(service, *(descriptor(key, hits_addend=hits) for key, hits in asked))
        room = {key: n - sum(now - at < per for at in taken[key]) for key, (n, per) in limits.items()}
        fits = True
        for key, hits in asked:
            fits = fits and room[key] >= max(1, hits)
            room[key] -= hits
        assert (response.overall_code is OK) == fits
        if fits:
            for key, hits in asked:
                taken[key] += [now] * hits
        clock.advance(wait)
        now = round(now + wait, 3)


# -- overrides -----------------------------------------------------------------------------------------------------


def test_a_limit_of_the_request_takes_the_place_of_the_rule(clock):
    service = service_of(TWO, clock=clock)
    two_an_hour = descriptor("user=a", limit=LimitOverride(2, Unit.HOUR))
    response = ask(service, two_an_hour)
    assert response.statuses[0] == DescriptorStatus(OK, CurrentLimit(2, Unit.HOUR), 1, 3600 * SECOND)
    assert passed(service, two_an_hour, 4) == 1
    assert passed(service, "user=a", 9) == 5
    assert passed(service, descriptor("what=ever", limit=LimitOverride(4, Unit.SECOND)), 9) == 4
    assert passed(service, descriptor("user=b", limit=LimitOverride(2, Unit.HOUR)), 9) == 2
    assert passed(service, descriptor("user=c", limit=LimitOverride(0, Unit.DAY)), 2) == 0


def test_overrides_of_any_number_need_one_limiter(clock):
    service = service_of(TWO, clock=clock)
    for count in range(1, 300):
        (status,) = ask(service, descriptor("user=a", limit=LimitOverride(count, Unit.DAY))).statuses
        assert status.limit_remaining == count - 1
    assert len(service._limiters._overrides) == 1


@pytest.mark.parametrize("unit", [0, 8, -1])
def test_an_override_without_a_unit_makes_no_sense(clock, unit):
    with pytest.raises(MalformedMessage, match="which is no unit"):
        ask(service_of(TWO, clock=clock), descriptor("user=a", limit=LimitOverride(2, unit)))


def test_an_override_in_an_unknown_domain_is_ok(clock):
    service = service_of(TWO, clock=clock)
    asked = descriptor("user=a", limit=LimitOverride(0, Unit.DAY))
    assert ask(service, asked, domain="elsewhere").statuses == (DescriptorStatus(OK),)


# -- shadow, unlimited, replaces -----------------------------------------------------------------------------------


def test_a_rule_in_shadow_mode_denies_nothing(clock):
    service = service_of(
        """
  - {key: user, value: a, limit: 1/minute, shadow_mode: true}
  - {key: user, value: b, limit: 2/minute}
""",
        clock=clock,
    )
    assert passed(service, "user=a", 5) == 5
    response = ask(service, "user=a", "user=b")
    assert (response.overall_code, codes(response), remaining(response)) == (OK, [OK, OK], [0, 1])
    assert passed(service, "user=b", 5) == 1


def test_a_service_in_shadow_mode_answers_ok_and_says_what_it_found(clock):
    service = service_of(USERS, clock=clock, shadow=True)
    assert passed(service, "user=a", 5) == 5
    assert codes(ask(service, "user=a")) == [OVER]
    assert service.stats.shadowed == 3


def test_an_unlimited_rule_is_ok_with_all_that_can_be_said(clock):
    service = service_of("  - {key: user, rate_limit: {unlimited: true}}", clock=clock)
    (status,) = ask(service, "user=a", hits_addend=1000).statuses
    assert status == DescriptorStatus(OK, None, MAX_UINT32)


def test_a_rule_that_is_replaced_is_not_asked(clock):
    service = service_of(
        """
  - {key: reads, rate_limit: {unit: second, requests_per_unit: 1, name: reads}}
  - {key: path, rate_limit: {unit: second, requests_per_unit: 3, replaces: [{name: reads}]}}
""",
        clock=clock,
    )
    response = ask(service, "reads=a", "path=x")
    assert response.statuses[0] == DescriptorStatus(OK)
    assert remaining(response) == [0, 2]
    assert passed(service, "reads=a", 3) == 1  # it is as it was
    assert ask(service, "reads=a").overall_code is OVER
    assert ask(service, "reads=a", "path=x").overall_code is OK


# -- kinds ---------------------------------------------------------------------------------------------------------


def test_a_window_is_never_above_its_limit_where_a_fixed_one_is(clock):
    """The known difference: envoyproxy/ratelimit starts at zero with every minute of the clock."""
    text = "  - {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}"
    clock.advance(59 - clock.wall() / SECOND % 60)
    sliding, fixed = service_of(text, clock=clock), service_of(text, clock=clock, fixed=True)
    assert passed(sliding, "user=a", 30) == passed(fixed, "user=a", 30) == 10
    assert ask(fixed, "user=a").statuses[0].duration_until_reset_ns == SECOND
    clock.advance(1)
    assert (passed(sliding, "user=a", 30), passed(fixed, "user=a", 30)) == (0, 10)
    clock.advance(59)
    assert passed(sliding, "user=a", 30) == 10


def test_any_limit_of_headway_will_do(clock):
    service = service_of(
        """
  - {key: a, limit: "10/s burst 3"}
  - {key: b, limit: "2/10s"}
  - {key: c, limit: "5/s; 6/minute"}
  - {key: e, limit: "1 every 6s"}
  - {key: f, limit: "4/day aligned"}
""",
        clock=clock,
    )
    assert [passed(service, f"{key}=1", 9) for key in "abcef"] == [3, 2, 5, 1, 4]
    clock.advance(1)
    assert [passed(service, f"{key}=1", 9) for key in "abcef"] == [3, 0, 1, 0, 0]
    limits = [ask(service, f"{key}=1").statuses[0].current_limit for key in "abcef"]
    assert limits == [
        CurrentLimit(10, Unit.SECOND),
        CurrentLimit(2, Unit.UNKNOWN),
        CurrentLimit(6, Unit.MINUTE),
        CurrentLimit(1, Unit.UNKNOWN),
        CurrentLimit(4, Unit.DAY),
    ]


# -- another configuration, and the end ----------------------------------------------------------------------------


def config_of(text):
    return read_config({"limits.yaml": f"domain: d\ndescriptors:\n{text}"})


def test_another_configuration_keeps_what_was_used(clock):
    service = service_of(USERS, clock=clock)
    override = descriptor("x=1", limit=LimitOverride(2, Unit.HOUR))
    assert (passed(service, "user=a", 9), passed(service, override, 9)) == (3, 2)
    service.use(config_of("  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}"))
    assert (passed(service, "user=a", 9), passed(service, override, 9)) == (2, 0)
    ask(service, descriptor("user=a", hits_addend=4, is_negative_hits=True))
    assert passed(service, "user=a", 9) == 4  # of grants under both configurations
    service.use(config_of("  - {key: user, limit: 10/s burst 7}"))
    assert passed(service, "user=a", 9) == 7  # another kind begins anew


def test_places_that_look_alike_have_ledgers_of_their_own(clock):
    service = service_of(
        """
  - {key: a_b, limit: 1/minute}
  - {key: a, value: b, limit: 2/minute}
  - {key: a/b, limit: 3/minute}
  - {key: a, descriptors: [{key: b, limit: 4/minute}]}
  - {key: a=b, limit: 5/minute}
""",
        clock=clock,
    )
    rules = service.config.rules()
    assert len({rule.id for rule in rules}) == len(rules) == 5
    assert passed(service, "a=b", 9) == 2
    assert passed(service, descriptor("a=x", "b=y"), 9) == 4


def test_a_closed_service_decides_nothing(clock):
    service = service_of(USERS, clock=clock)
    ask(service, "user=a")
    service.close()
    with pytest.raises(LimiterClosed):
        ask(service, "user=a")


def test_a_failure_halfway_gives_back_what_was_taken(clock, monkeypatch):
    service = service_of(TWO, clock=clock)
    ask(service, "user=a", "path=x")
    (path,) = [kept for rule, kept in service._limiters._rules.items() if rule.path[0].key == "path"]
    path.limiter.close()
    with pytest.raises(LimiterClosed):
        ask(service, "user=a", "path=x")
    assert remaining(ask(service, "user=a")) == [3]


def test_service_names_are_shared_by_those_of_one_namespace(clock):
    first, second = (RateLimitService(config_of(USERS), namespace="same", clock=clock) for _ in range(2))
    assert (passed(first, "user=a", 2), passed(second, "user=a", 9)) == (2, 1)
    assert isinstance(first._limiters.of_rule(first.config.rules()[0]).limiter.try_acquire("b"), Permit)


def test_leases_are_refused():
    with pytest.raises(InvalidArgument, match="the first one of each key would be denied"):
        service_of(USERS, engine="redis://127.0.0.1:1/0", prefetch=True)


def test_requests_are_counted_by_their_sense(clock):
    service = service_of(USERS, clock=clock)
    ask(service, "user=a")
    with pytest.raises(MalformedMessage):
        ask(service)
    assert service.stats.requests == 1
    assert request("user=a").descriptors == (descriptor("user=a"),)
