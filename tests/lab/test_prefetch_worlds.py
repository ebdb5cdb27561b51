"""1,000 worlds of lost, late and repeated answers, failures and slow clocks: never above, nothing forgotten, no jam."""

import pytest

from headway.core.prefetch import NEVER, PrefetchLedger
from headway.lab.prefetch.worlds import run_world

CHUNK = 50


def holds(verdict, optimistic):
    """Nothing is above the limit, every spent permit was granted or is owed, and it goes on afterwards."""
    within = verdict.above == 0 and verdict.passed <= verdict.granted + verdict.owed
    return within and (optimistic or verdict.owed == 0) and verdict.late > (0.5 if optimistic else 0.25)


@pytest.mark.parametrize("first", range(0, 500, CHUNK))
@pytest.mark.parametrize("optimistic", [False, True], ids=["strict", "optimistic"])
def test_a_world_keeps_its_limit_and_recovers(first, optimistic):
    for seed in range(first, first + CHUNK):
        verdict = run_world(seed, optimistic=optimistic)
        assert holds(verdict, optimistic), (seed, verdict)


class CountsFromTheAnswer(PrefetchLedger):
    def answer(self, fetch, now, *answer):
        fetch.sent_at = now
        super().answer(fetch, now, *answer)


class TrustsItsClock(PrefetchLedger):
    def _shortened(self, valid_ns):
        return valid_ns


class TakesCopies(PrefetchLedger):
    def answer(self, fetch, *answer):
        super().answer(fetch, *answer)
        fetch.answered = False


class NeverExpires(PrefetchLedger):
    def answer(self, fetch, now, granted, valid_ns, retry_ns=None):
        super().answer(fetch, now, granted, None, retry_ns)


class SpendsLateAnswers(PrefetchLedger):
    """Whatever was valid when it was granted, however late it comes."""

    def answer(self, fetch, now, granted, valid_ns, retry_ns=None):
        super().answer(fetch, now, granted, max(valid_ns, now - fetch.sent_at + 200_000_000), retry_ns)


class ForgetsDebt(PrefetchLedger):
    def answer(self, *answer):
        super().answer(*answer)
        self.debt = 0


class ForgetsWhatFailed(PrefetchLedger):
    def give_up(self, fetch):
        fetch.advance = 0
        super().give_up(fetch)


class WaitsForEver(PrefetchLedger):
    def overdue(self, now):
        return None


class GivesUpAfterAnError(PrefetchLedger):
    def fail(self, fetch, now):
        super().fail(fetch, now)
        self.predictor.closed_until = NEVER


@pytest.mark.parametrize(
    ("mutant", "optimistic"),
    [
        (CountsFromTheAnswer, False),
        (TrustsItsClock, False),
        (TakesCopies, False),
        (NeverExpires, False),
        (SpendsLateAnswers, False),
        (WaitsForEver, False),
        (GivesUpAfterAnError, False),
        (ForgetsDebt, True),
        (ForgetsWhatFailed, True),
    ],
)
def test_a_wrong_rule_is_found(mutant, optimistic):
    assert not all(
        holds(run_world(seed, new_ledger=mutant, optimistic=optimistic), optimistic) for seed in range(150)
    )
