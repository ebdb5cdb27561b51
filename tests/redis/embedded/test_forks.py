"""A forked child is a user of its own, however it and its parent end."""

import os
import time

import pytest
from tests.redis.embedded.processes import MARKS, deserted

pytestmark = MARKS


@pytest.mark.parametrize("parent_ends", ["close", "leave", "kill"])
@pytest.mark.parametrize("child_ends", ["normally", "os._exit(0)"])
def test_a_forked_child_is_a_user_of_its_own(home, user, parent_ends, child_ends):
    parent = user()
    run = parent.call("enter()")
    fifo = home / "fifo"
    os.mkfifo(fifo)
    parent.say(f"fork({str(fifo)!r})")
    with fifo.open("w", buffering=1) as to_child:
        assert 0 in (parent.hear(), parent.hear())  # both have it as their stdout
        if parent_ends == "close":
            parent.call("shared.close()")
        else:
            getattr(parent, parent_ends)()
        time.sleep(0.3)  # enough for a guard that is mistaken
        to_child.write("client.info('server')['run_id']\n")
        assert parent.hear() == run
        if child_ends != "normally":
            to_child.write(f"{child_ends}\n")
    assert deserted(home)


def test_the_end_of_a_forked_child_is_not_its_parents(home, user):
    parent = user()
    run = parent.call("enter()")
    assert (
        parent.call("[os.fork() or os._exit(0) for _ in range(3)] and [os.wait() for _ in range(3)] and 1")
        == 1
    )
    time.sleep(0.3)
    assert parent.call("client.info('server')['run_id']") == run
    parent.leave()
    assert deserted(home)


def test_a_fork_while_another_thread_comes_and_goes(home, user):
    parent, other = user(), user()
    parent.call("globals().update(enough=threading.Event())")
    visits = "[(shared.open(), shared.close()) for _ in iter(enough.is_set, True)]"
    parent.call(f"globals().update(busy=threading.Thread(target=lambda: {visits})) or busy.start()")
    child = "(signal.alarm(40), shared.open(), client.ping(), shared.close(), os._exit(0))"
    parent.say(f"[os.fork() or {child} for _ in range(20) if time.sleep(0.02) is None]")
    assert other.call("shared.open(timeout=5)") is None
    assert len(parent.hear()) == 20
    assert parent.call("enough.set() or busy.join()") is None
    assert set(parent.call("[os.wait()[1] for _ in range(20)]")) == {0}  # none hung until its alarm
    other.leave()
    parent.leave()
    assert deserted(home)
