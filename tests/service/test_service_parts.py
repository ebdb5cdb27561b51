"""Parts of the service by themselves: remembered answers, permits with leases, keys."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import Limiter
from headway.service.answers import RememberedAnswers, fingerprint
from headway.service.encoded import Encoded
from headway.service.keys import KeyTable
from headway.service.permits import HeldPermits
from headway.service.problems import Problem
from headway.service.server import watch
from headway.testing import run


def answer(size=10):
    return Encoded(200, b"", "text/plain", b"x" * size)


def remembered(table, number, size=10):
    async def make():
        return answer(size)

    return table.once(("", "POST", "/", str(number)), b"", make)


def test_answers_are_bounded_in_number_bytes_and_time():
    async def main():
        loop = asyncio.get_running_loop()
        few: RememberedAnswers[Encoded] = RememberedAnswers(loop.time, most=3)
        for number in range(10):
            await remembered(few, number)
        assert len(few) == 3
        small: RememberedAnswers[Encoded] = RememberedAnswers(loop.time, most_bytes=10_000)
        for number in range(10):
            await remembered(small, number, size=2000)
        assert len(small) == 3
        await remembered(small, 99, size=20_000)
        assert (len(small), small._bytes) == (0, 0), "one that is too large alone is not remembered"
        old: RememberedAnswers[Encoded] = RememberedAnswers(loop.time, ttl=60)
        await remembered(old, 1)
        await asyncio.sleep(59)
        await remembered(old, 2)
        assert len(old) == 2
        await asyncio.sleep(2)
        await remembered(old, 3)
        assert len(old) == 2

    run(main())


def test_a_failure_is_not_remembered_and_the_next_copy_tries_itself():
    async def main():
        table: RememberedAnswers[Encoded] = RememberedAnswers(asyncio.get_running_loop().time)
        made: list[int] = []

        async def make():
            made.append(1)
            await asyncio.sleep(1)
            if len(made) == 1:
                raise Problem("rate-limited", "not now")
            return answer()

        copies = [asyncio.ensure_future(table.once(("a",), b"", make)) for _ in range(3)]
        found = await asyncio.gather(*copies, return_exceptions=True)
        assert isinstance(found[0], Problem)
        assert found[1] is found[2]
        assert len(made) == 2

    run(main())


def test_fingerprints_differ():
    assert fingerprint(b"a") != fingerprint(b"b")
    assert len(fingerprint(b"a" * 10**6)) == 16


# -- permits ---------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("ard"), st.integers(0, 9), st.floats(0.1, 50)), max_size=40))
def test_leases_end_exactly_when_they_run_out(steps):
    """Against a list of deadlines: whatever is added, renewed and ended, what is left is what has not run out."""

    async def main():
        loop = asyncio.get_running_loop()
        limiter = Limiter("1000 concurrent")
        table = HeldPermits(loop.time)
        model: dict[str, float] = {}
        ids: list[str] = []
        for what, which, span in steps:
            if what == "a" or not ids:
                ids.append(table.add("calls", limiter.acquire(), span))
                model[ids[-1]] = loop.time() + span
            elif (id := ids[which % len(ids)]) in model:
                if what == "r":
                    table.renew(id, span)
                    model[id] = loop.time() + span
                else:
                    table.release(id, "complete")
                    del model[id]
            await asyncio.sleep(span / 4)
            model = {id: at for id, at in model.items() if at > loop.time() - 0.002}
            alive = {id for id, at in model.items() if at > loop.time() + 0.002}
            assert alive <= set(table._held) <= set(model)
            assert limiter.peek().in_flight == len(table) == table.out("calls")
        table.abandon_all()
        assert limiter.peek().in_flight == 0
        await table.all_ended()

    run(main())


def test_renewals_leave_no_entries_behind():
    async def main():
        table = HeldPermits(asyncio.get_running_loop().time)
        limiter = Limiter("1000 concurrent")
        ids = [table.add("calls", limiter.acquire(), 100) for _ in range(10)]
        for _ in range(5000):
            table.renew(ids[0], 100)
            other = table.add("calls", limiter.acquire(), 100)
            table.release(other, "complete")
        assert len(table._expiries) < 2000
        for _ in range(5000):
            table.renew(ids[0], 86400)
        assert len(table._expiries) < 2000
        table.abandon_all()

    run(main())


def test_ends_are_remembered_for_a_while():
    async def main():
        table = HeldPermits(asyncio.get_running_loop().time)
        limiter = Limiter("5 concurrent")
        id = table.add("calls", limiter.acquire(), 100)
        table.release(id, "complete")
        await asyncio.sleep(599)
        assert table.release(id, "complete") == "complete"
        await asyncio.sleep(2)
        table.release(table.add("calls", limiter.acquire(), 100), "complete")
        with pytest.raises(Problem, match="never given out"):
            table.release(id, "complete")

    run(main())


# -- keys ------------------------------------------------------------------------------------------------


def test_a_flood_of_keys_costs_no_pass_over_the_table_each():
    table = KeyTable(50_000)
    for number in range(50_000):
        table.note(f"key {number}", 1000.0)
    begin = time.process_time()
    assert not any(table.admits(f"other {number}", 10.0 + number / 10_000) for number in range(20_000))
    assert time.process_time() - begin < 2, "a pass takes about 5 ms"
    assert table.admits("other", 1000.0)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0, 10), st.floats(0.1, 20)), max_size=60))
def test_there_are_never_more_keys_than_the_most(steps):
    table, now = KeyTable(3), 0.0
    model: dict[str, float] = {}
    for key, pause, span in steps:
        now += pause
        if table.admits(key, now):
            table.note(key, now + span)
            model[key] = now + span
        else:
            assert key not in model or model[key] <= now, "a key that has a ledger is never refused"
        assert len(table) <= 3


def test_a_key_counts_from_the_moment_at_which_it_is_admitted():
    """Many requests may be under way before the first of them is decided."""
    table = KeyTable(3)
    assert [table.admits(key, 1.0) for key in "abcde"] == [True, True, True, False, False]
    assert table.admits({"host": "a", "tokens": "b"}, 1.0) is False
    assert table.admits("d", 7.0), "those that were never decided are forgotten"


# -- the file


@pytest.mark.parametrize("early", [False, True], ids=["while it is watched", "before it is watched"])
def test_a_file_that_is_being_written_is_read_when_it_is_whole(tmp_path, monkeypatch, early):
    """A program that writes in place empties the file first, and an empty file has no limits."""
    file = tmp_path / "headway.toml"
    file.write_text("old")
    looks = iter(["old", "", "half", "whole", "whole"][early:])

    def signature(path):
        path.write_text(next(looks))
        return (hash(path.read_text()),)

    monkeypatch.setattr("headway.service.server._signature", signature)
    read: list[str] = []
    done = asyncio.Event()

    async def reload(text, env):
        read.append(text)
        done.set()
        await asyncio.Event().wait()

    async def main():
        wanted = asyncio.Event()
        if not early:
            wanted.set()
        service: Any = SimpleNamespace(envoy=None, reload=reload)
        watching = asyncio.ensure_future(watch(file, service, wanted, print, (hash("old"),)))
        await done.wait()
        watching.cancel()

    asyncio.run(main())
    assert read == ["whole"]
