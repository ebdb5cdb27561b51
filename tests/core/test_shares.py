"""Shares: fair by demand, whole, never more than there are; and samples that are even."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headway.core.shares import MILLI, level, sample, shares

wants = st.lists(st.integers(0, 50_000), min_size=1, max_size=12)
tokens = st.integers(0, 60)


@given(tokens, wants)
def test_level_is_the_highest_at_which_the_shares_fit(n, wants):
    top = level(n * MILLI, wants)
    assert sum(min(want, top) for want in wants) <= n * MILLI
    if sum(wants) > n * MILLI:
        assert sum(min(want, top + 1) for want in wants) > n * MILLI


@given(tokens, wants, st.data())
def test_shares_are_whole_and_max_min_fair(n, wants, data):
    held = data.draw(st.lists(st.integers(0, n), min_size=len(wants), max_size=len(wants)))
    parts = shares(n, wants, held)
    assert sum(parts) <= n
    if sum(wants) >= n * MILLI:
        # Within one token of the exact share, and none is left over.
        top = level(n * MILLI, wants)
        assert all(
            abs(part * MILLI - min(want, top)) < MILLI for part, want in zip(parts, wants, strict=True)
        )
        exact = sum(Fraction(min(want, top)) for want in wants) / MILLI
        assert exact <= sum(parts) < exact + 1 or sum(parts) == n
    else:
        assert all(part >= want // MILLI for part, want in zip(parts, wants, strict=True))


@given(tokens, wants)
def test_shares_that_are_held_are_not_moved(n, wants):
    parts = shares(n, wants, [0] * len(wants))
    assert shares(n, wants, parts) == parts


def test_nothing_is_lost_when_eight_clients_want_a_fraction_each():
    assert sorted(shares(20, [2500] * 8, [0] * 8)) == [2] * 4 + [3] * 4
    assert shares(20, [8421, 4210, 2105, *[1052] * 5], [0] * 8) == [9, 4, 2, 1, 1, 1, 1, 1]


@given(st.lists(st.integers(0, 9), max_size=12), st.data())
def test_sample_is_even(counts, data):
    m = data.draw(st.integers(0, sum(counts)))
    taken = sample(counts, m)
    assert sum(taken) == m
    assert all(0 <= took <= count for took, count in zip(taken, counts, strict=True))
    # Of every stretch of tokens the same part is taken, to within one.
    for i in range(len(counts)):
        for j in range(i + 1, len(counts) + 1):
            part = Fraction(sum(counts[i:j]) * m, max(1, sum(counts)))
            assert abs(sum(taken[i:j]) - part) < 1
