"""Every value that crosses the wire is the same on the other side; what is no such value is refused."""

import json

import pytest

from headway import Bucket, Concurrency, FixedWindow, Remote, Spacing, Window
from headway.core.unlimited import Unlimited
from headway.engines.wire import error_in, error_out, limit_in, limit_out, rows_in, rows_out
from headway.errors import GateFull, HeadwayError, IdReused, LimitMismatch

LIMITS = [
    Window(100, per=60),
    Window(5, per=1, remote=False),
    Window(5, per=1, remote=Remote(resolution=0, drift_ppm=0.5, out_latency=0.001, max_transit=0)),
    Bucket("90/minute", burst=7),
    Spacing(0.25),
    Spacing(6, max_reserved=0, expire_after=0, strict=True),
    Spacing(6, strict=False),
    FixedWindow(5, per="month", tz="Europe/Berlin"),
    FixedWindow(5, per="3h"),
    Concurrency(5),
]


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
def test_a_limit_comes_back_as_it_was(limit):
    assert limit_in(json.loads(json.dumps(limit_out(limit)))) == limit


def test_a_limit_without_a_form_is_not_sent():
    with pytest.raises(ValueError, match="no form"):
        limit_out(Unlimited())


@pytest.mark.parametrize(
    "said", [None, [], ["window"], ["window", 5, "1", None], ["nothing", 1], "window", {}]
)
def test_what_is_no_limit_is_refused(said):
    with pytest.raises(ValueError, match="is no limit"):
        limit_in(said)


def test_a_row_says_its_limit_only_where_another_one_governs():
    own, other = Window(5, per=1), Window(7, per=1)
    rows = [(own, 1, 2, 3, 4, 5, True), (other, 1, 2, 3, 4, 5, False)]
    said = json.loads(json.dumps(rows_out(rows, [own, own])))
    assert said[0][0] is None
    assert rows_in(said, [own, own]) == rows


@pytest.mark.parametrize(
    "error", [GateFull(5, 1.5), IdReused("1", "a", "b"), LimitMismatch("n", "only 3s", "strict 3s")]
)
def test_an_error_comes_back_with_its_facts(error):
    back = error_in(json.loads(json.dumps(error_out(error))))
    assert (type(back), str(back), back.__dict__) == (type(error), str(error), error.__dict__)


def test_an_error_that_is_not_known_is_one_of_ours():
    assert type(error_in(["KeyboardInterrupt", "no", {"a": 1}])) is HeadwayError
