"""Keys, names and overrides: whose ledger is asked, and by which limit."""

# mypy: disable-error-code="union-attr"

import time

import pytest

from engines.limits import HOUR, REMOTE
from engines.waiting import Callers, eventually, in_line
from headway import Window


def test_a_key_may_be_any_text(make, call):
    limiter = make("1/hour")
    for key in ("", " ", "\udcff", "a\0b", "\n", "x" * 3000, "größe", "}{", "a:b"):
        assert call(limiter.try_acquire, key)
        assert not call(limiter.try_acquire, key)


def test_a_str_of_another_type_is_the_same_key(make):
    class Name(str):
        __slots__ = ()

    limiter = make("2/hour")
    assert limiter.try_acquire(Name("a"))
    assert limiter.peek("a").remaining == 1


def test_names_that_look_alike_are_not_the_same(make, name):
    first, other = make("1/hour", name=f"{name}:b"), make("1/hour", name=name)
    assert first.try_acquire("c")
    assert other.try_acquire("b:c")
    assert other.try_acquire("}{")
    assert make("1/hour", name=f"{name}}}").try_acquire("{")


def test_a_limiter_says_its_name_and_its_limit(make, name):
    limiter = make("5/hour")
    assert (limiter.name, limiter.limit) == (name, Window(5, per=HOUR))
    assert repr(limiter).startswith(f"Limiter('5/hour', name={name!r}")


def test_another_number_under_the_same_name_carries_the_state_over(make):
    first = make("5/hour")
    first.acquire(cost=4)
    second = make("3/hour")
    assert (second.peek().remaining, first.peek().remaining) == (0, 0)


def test_a_remote_under_the_same_name_holds_for_both(engine, make, known):
    if engine.shared:
        known(
            "a client with the older limit, without a remote, does not end what the newer one holds: its lease does"
        )
    first = make("2/hour")
    make("2/hour", remote=REMOTE).peek()
    permit = first.acquire()
    assert first.peek().in_flight == 1
    permit.complete()
    time.sleep(0.2)
    assert first.peek().in_flight == 0


def test_the_remote_of_a_limiter_is_that_of_its_windows(make, anew):
    for limiter in (
        make("2/hour", remote=True),
        anew("2/hour; 9/hour", remote=REMOTE),
        anew({"a": "2/hour"}, remote=True),
    ):
        permit = limiter.acquire()
        assert limiter.peek().in_flight == 1
        permit.complete()
        eventually(lambda limiter=limiter: limiter.peek().in_flight == 0, "its end")


# -- overrides ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["mapping", "callable"])
def test_single_keys_may_have_another_limit(make, call, form):
    table = {"vip": "3/hour", "banned": "0/hour"}
    limiter = make("1/hour", overrides=table if form == "mapping" else table.get)
    granted = {
        key: sum(bool(call(limiter.try_acquire, key)) for _ in range(5))
        for key in ("vip", "banned", "joe", None)
    }
    assert granted == {"vip": 3, "banned": 0, "joe": 1, None: 1}
    assert limiter.peek("vip").limit.capacity == 3
    for key, most in (("vip", 3), ("joe", 1)):
        with pytest.raises(ValueError, match=f"at most {most}"):
            call(limiter.acquire, key, cost=most + 1)


OTHERS = {
    "bucket": "1/hour burst 2",
    "window": "2/hour",
    "window with a remote": Window(2, per=HOUR, remote=REMOTE),
    "fixed window": "2/month aligned",
    "concurrency": "2 concurrent",
    "spacing": "1 every 10m",
}


@pytest.mark.parametrize("own", OTHERS)
@pytest.mark.parametrize("base", OTHERS)
def test_an_override_may_be_of_another_kind(make, base, own):
    limiter = make(OTHERS[base], overrides={"vip": OTHERS[own]})
    count = 1 if own == "spacing" else 2
    held = own in ("window with a remote", "concurrency")
    permits = [limiter.try_acquire("vip") for _ in range(3)]
    assert [bool(permit) for permit in permits] == [number < count for number in range(3)]
    status = limiter.peek("vip")
    assert (status.remaining, status.in_flight) == (0, count if held else 0)
    for permit in permits[:count]:
        permit.complete()
    limiter.acquire("bob").complete()
    eventually(lambda: limiter.peek("vip").in_flight == 0, "what was ended")
    assert limiter.peek("vip").remaining == (2 if own == "concurrency" else 0)


def test_a_waiter_for_a_key_with_an_override_stands_in_the_queue_of_that_key(make):
    """The limiter's own kind would promise a time, that of the key cannot."""
    limiter = make("100/s burst 10", overrides={"vip": "1 concurrent"})
    held = limiter.acquire("vip")
    callers = Callers()
    callers.start(lambda: limiter.acquire("vip").complete())
    in_line(limiter, 1, "vip")
    held.complete()
    assert callers.join() == [None]


def test_each_metric_goes_by_its_own_key(make):
    own = {"vip": {"tokens": "900/hour"}, "slow": {"calls": "1/hour"}}
    limiter = make({"calls": "10/hour", "tokens": "100/hour"}, overrides=own)
    left = [
        [part.remaining for part in limiter.peek(key).parts]
        for key in ("vip", {"tokens": "vip"}, {"calls": "slow", "tokens": "vip"}, None)
    ]
    assert left == [[10, 900], [10, 900], [1, 900], [10, 100]]
    assert limiter.try_acquire({"tokens": "vip"}, cost={"tokens": 500})


def test_metrics_of_a_key_may_be_of_another_kind(engine, make, known):
    if engine.shared:
        known(
            "an override of another kind than its metric's own is refused, as any client may serve their one queue"
        )
    limiter = make(
        {"calls": "10/hour", "slots": "9 concurrent"}, overrides={"vip": {"calls": "2 concurrent"}}
    )
    permit = limiter.acquire({"calls": "vip"})
    assert [part.remaining for part in limiter.peek({"calls": "vip"}).parts] == [1, 8]
    permit.complete()


@pytest.mark.parametrize("wrong", ["5 cows", "1/s; 2/m", {"tokens": "1/s"}])
def test_a_wrong_override_is_an_error_at_once(make, wrong):
    with pytest.raises(ValueError, match=r"invalid limit|overrides"):
        make("1/hour", overrides={"vip": wrong})


def test_an_override_that_turns_out_wrong_changes_nothing(make, call):
    limiter = make("10/hour", overrides=lambda key: "1/parsec" if key == "bad" else None)
    limiter.acquire("a")
    before = limiter.stats()
    for verb in (limiter.try_acquire, limiter.acquire, limiter.peek):
        with pytest.raises(ValueError, match="parsec"):
            call(verb, "bad")
    assert (limiter.stats(), limiter.peek("a").remaining) == (before, 9)


def test_a_limit_that_changes_leaves_a_function_of_keys_alone(make):
    limiter = make("5/hour", overrides={"pro": "7/hour"}.get)
    assert limiter.peek("pro").remaining == 7
    limiter.set_limit("2/hour")
    assert (limiter.peek("pro").remaining, limiter.peek("bob").remaining) == (7, 2)
