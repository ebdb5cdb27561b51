"""Next to a model of envoyproxy/ratelimit, which counts from zero in every second, minute, hour and day of the clock.

With `fixed` the decisions are the same, request by request. Without it they differ on purpose: no window has more than
the limit, wherever it begins. The model charges what it denies, and one descriptor although another denies; so requests
have one descriptor and one hit, where that makes no difference.
"""

from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.testing import ManualClock
from service.envoy.asking import OK, ask, descriptor, service_of

SECOND = 10**9
RULES = """
  - key: source
    value: proxy
    descriptors:
      - {key: destination, value: mock, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
    descriptors:
      - {key: path, rate_limit: {unit: hour, requests_per_unit: 3}}
      - {key: path, value: banned, rate_limit: {unit: minute, requests_per_unit: 0}}
      - {key: call, rate_limit: {unit: second, requests_per_unit: 1}}
      - {key: open, rate_limit: {unlimited: true}}
      - {key: call, value: shady, rate_limit: {unit: minute, requests_per_unit: 1}, shadow_mode: true}
  - {key: file, value: "docs/*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 4}}
  - {key: file, value: "img/*", rate_limit: {unit: day, requests_per_unit: 2}}
"""

# What is asked for; the counter that envoyproxy/ratelimit keeps for it, its limit, and the seconds of its unit.
CASES = {
    ("source=proxy", "destination=mock"): ("mock", 1, 60),
    ("source=proxy", "destination=other"): None,
    ("source=proxy",): None,
    ("user=a",): ("a", 2, 60),
    ("user=b",): ("b", 2, 60),
    ("user=a", "path=x"): ("a x", 3, 3600),
    ("user=a", "path=y"): ("a y", 3, 3600),
    ("user=a", "path=banned"): ("a banned", 0, 60),
    ("user=b", "call=1"): ("b 1", 1, 1),
    ("user=b", "open=1"): None,
    ("user=b", "call=shady"): None,
    ("user=b", "path=x", "more=1"): None,
    ("file=docs/1",): ("docs", 4, 86_400),
    ("file=docs/2",): ("docs", 4, 86_400),
    ("file=img/1",): ("img 1", 2, 86_400),
    ("file=img/2",): ("img 2", 2, 86_400),
    ("file=other",): None,
}

WAITS_MS = [0, 0, 0, 1, 300, 999, 20_000, 30_000, 61_000, 1_500_000, 40_000_000]
few = st.lists(st.sampled_from(list(CASES)), min_size=1, max_size=3)
# Of a few cases at a time, so that each is asked for often.
steps = few.flatmap(
    lambda cases: st.lists(
        st.tuples(st.sampled_from(cases), st.sampled_from(WAITS_MS)), min_size=12, max_size=40
    )
)


class Model:
    def __init__(self, clock):
        self.clock = clock
        self.counts: Counter[tuple[str, int]] = Counter()

    def passes(self, asked):
        case = CASES[asked]
        if case is None:
            return True
        name, limit, seconds = case
        counter = (name, self.clock.wall() // SECOND // seconds)
        self.counts[counter] += 1
        return self.counts[counter] <= limit


@settings(max_examples=100)
@given(steps)
def test_with_fixed_windows_the_decisions_are_the_same(steps):
    clock = ManualClock()
    service, model = service_of(RULES, clock=clock, fixed=True), Model(clock)
    for asked, wait_ms in steps:
        response = ask(service, descriptor(*asked))
        assert (response.overall_code is OK) == model.passes(asked), asked
        clock.advance(wait_ms / 1000)


@settings(max_examples=100)
@given(steps)
def test_without_it_no_window_of_the_clock_has_more_than_there_and_no_other_window_either(steps):
    clock = ManualClock()
    service = service_of(RULES, clock=clock)
    passed = defaultdict(list)
    for asked, wait_ms in steps:
        case = CASES[asked]
        if ask(service, descriptor(*asked)).overall_code is OK and case is not None:
            passed[case].append(clock.wall())
        clock.advance(wait_ms / 1000)
    for (_, limit, seconds), times in passed.items():
        for start in times:
            assert sum(start <= at < start + seconds * SECOND for at in times) <= limit
