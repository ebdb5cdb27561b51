"""feedback: what the remote says to one process holds for all that share the ledger."""

# mypy: disable-error-code="union-attr"

from engines.waiting import NEVER, eventually
from headway import Window


def test_a_refusal_that_one_heard_pauses_the_others(make, call):
    heard, other = make("5/hour"), make("5/hour")
    said = call(heard.feedback, (429, {"Retry-After": "900"}), "alice")
    assert (said.refused, said.wait) == (True, 900)
    denied = call(other.try_acquire, "alice")
    assert denied.reason == "paused"
    assert 900 - NEVER < denied.retry_after <= 904
    assert call(other.try_acquire, "bob")


def test_a_limit_that_the_remote_states_is_kept_by_all_and_never_raised(make, call):
    heard, other = make("5/hour"), make("5/hour")
    assert call(other.try_acquire)
    call(heard.feedback, (200, {"RateLimit-Policy": '"mine";q=2;w=3600'}))
    assert heard.limit == Window(2, per=3600)
    assert call(heard.try_acquire)
    assert not call(heard.try_acquire)
    eventually(lambda: not other.try_acquire(), "the other one keeps it too")
    call(heard.feedback, (200, {"RateLimit-Policy": '"mine";q=1000;w=3600'}))
    assert heard.limit == Window(5, per=3600)
