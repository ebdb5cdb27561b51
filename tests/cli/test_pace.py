"""`headway pace` as a shell sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headway.cli.lines import Lines, SigintGuard
from waiting import NEVER

posix = pytest.mark.skipif(os.name == "nt", reason="needs signals of POSIX")
PACE = [sys.executable, "-m", "headway.cli", "pace"]


def pace(*words, lines=""):
    return subprocess.run([*PACE, *words], input=lines.encode(), capture_output=True, timeout=60, check=False)


@pytest.mark.realtime
def test_every_line_passes_once_in_order_at_the_rate():
    lines = "".join(f"line {n}\n" for n in range(100)) + "\nno end \xe4"
    start = time.monotonic()
    done = pace("500/s", lines=lines)
    assert (done.returncode, done.stdout, done.stderr) == (0, lines.encode(), b"")
    assert time.monotonic() - start > 102 / 500


def test_empty_input():
    assert pace("5/s").returncode == 0


@pytest.mark.parametrize("words", [["0/s"], ["5/fortnight"], ["5/s", "--ratio", "0.5"], ["5,halt"]])
def test_bad_rates_are_explained(words):
    done = pace(*words)
    assert done.returncode == 2
    assert b"accepted" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["configure", "stop"])
def test_a_rate_with_a_verb_that_stops_it_starts_all_the_same(verb):
    assert pace(f"500/s,{verb}", lines="a\nb\n").stdout == b"a\nb\n"


def test_a_reader_that_leaves_is_no_error():
    command = f"yes | '{sys.executable}' -m headway.cli pace 2000/s | head -3"
    done = subprocess.run(
        ["bash", "-c", command + "; exit ${PIPESTATUS[1]}"], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"y\n" * 3, b"")


def test_a_command_for_each_line():
    done = pace("1000/s", "--jobs", "4", "--", "echo", "<{}>", lines="a\nb c\n\n$d\n")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [b"<$d>", b"<a>", b"<b c>"]


def test_commands_that_fail_are_told():
    assert pace("1000/s", "--", "false", lines="a\n").returncode == 123
    done = pace("1000/s", "--", "no-such-program", lines="a\n")
    assert done.returncode == 123
    assert b"no-such-program" in done.stderr


def test_a_line_with_a_nul_is_told_and_the_others_run():
    done = pace("1000/s", "--", "echo", "<{}>", lines="a\nb\0c\nd\n")
    assert (done.returncode, done.stdout) == (123, b"<a>\n<d>\n")
    assert done.stderr == b"headway: line 2: it contains a NUL byte, and an argument cannot: not run\n"
    assert pace("1000/s", lines="a\nb\0c\n").stdout == b"a\nb\0c\n", (
        "without a command it is a line like any other"
    )


def test_a_line_in_an_error_is_escaped():
    done = pace("1000/s", "--", "./none-{}", lines="\x1b]52;c;aGk=\x07\x1b[2J\r\u202e\n")
    assert done.returncode == 123
    assert (
        done.stderr == b"headway: ./none-\\x1b]52;c;aGk=\\x07\\x1b[2J\\r\\u202e: No such file or directory\n"
    )


def numbers(upto):
    return "".join(f"{n}\n" for n in range(1, upto + 1)).encode()


def start(*words, source):
    """Unbuffered, so that what `readline` has not returned is there for `communicate`."""
    return subprocess.Popen([*PACE, *words], 0, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def filled_pipe(data):
    """The reading end of a pipe with `data` in it, and its writing end."""
    reading, writing = os.pipe()
    os.write(writing, data)
    return reading, writing


def rest_of(source):
    """What the next program finds in the same input."""
    return subprocess.run(["cat"], stdin=source, capture_output=True, timeout=60, check=True).stdout


# -- Ctrl-C


@posix
@pytest.mark.parametrize("rate", ["20/s", "20000/s"])
def test_interrupted_the_rest_of_a_file_is_left_to_the_next_reader(tmp_path, rate):
    data = numbers(50_000)
    tmp_path.joinpath("lines").write_bytes(data)
    with tmp_path.joinpath("lines").open("rb") as source:
        child = start(rate, source=source)
        first = child.stdout.readline()
        child.send_signal(signal.SIGINT)
        out, said = child.communicate(timeout=NEVER)
        passed = first + out
        assert child.returncode == 130
        assert passed + rest_of(source) == data
    count = len(passed.splitlines())
    assert said == f"headway: interrupted after {count:,} line{'s' * (count > 1)}\n".encode()


@posix
def test_interrupted_the_rest_of_a_pipe_is_left_to_the_next_reader():
    data = numbers(1000)
    source, writing = filled_pipe(data)
    child = start("50/s", source=source)
    first = [child.stdout.readline() for _ in range(3)]
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=NEVER)
    os.close(writing)
    passed = b"".join(first) + out
    assert child.returncode == 130
    assert passed + rest_of(source) == data
    assert b"read and not" not in said
    os.close(source)


@posix
@pytest.mark.parametrize(("rate", "data"), [("20/minute", b"a\nb\nc\n"), ("500/s", b"a\n")])
def test_interrupted_while_it_waits_for_a_turn_or_for_input(rate, data):
    """Nothing was taken for either."""
    source, writing = filled_pipe(data)
    child = start(rate, source=source)
    assert child.stdout.readline() == b"a\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=NEVER)
    os.close(writing)
    assert (child.returncode, out, said) == (130, b"", b"headway: interrupted after 1 line\n")
    assert rest_of(source) == data[2:]
    os.close(source)


@posix
def test_lines_that_were_read_too_many_are_told():
    source, writing = filled_pipe(numbers(4))
    os.write(writing, b"half a li")
    child = start("1000000/s", source=source)
    assert [child.stdout.readline() for _ in range(4)] == numbers(4).splitlines(keepends=True)
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=NEVER)
    os.close(writing)
    assert (child.returncode, out) == (130, b"")
    assert said == b"headway: interrupted after 4 lines, 1 more read and not let through\n"
    os.close(source)


def read_all(pipe, found):
    found.append(pipe.read())


@posix
def test_interrupted_at_any_moment(tmp_path):
    """At full speed, so likely between reading and writing: what was written and what is left is the file."""
    data = numbers(300_000)
    tmp_path.joinpath("lines").write_bytes(data)
    for pause in (0.001, 0.003, 0.01, 0.03):
        with tmp_path.joinpath("lines").open("rb") as source:
            child = start("1e9/s", source=source)
            passed = [child.stdout.readline()]
            reader = threading.Thread(target=read_all, args=(child.stdout, passed))
            reader.start()
            time.sleep(pause)
            child.send_signal(signal.SIGINT)
            reader.join(NEVER)
            said = child.stderr.read()
            assert child.wait(NEVER) == 130
            assert b"".join(passed) + rest_of(source) == data
            assert said.startswith(b"headway: interrupted after ")
            child.stdout.close()
            child.stderr.close()


@posix
def test_a_background_job_of_a_script_ignores_it():
    child = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *PACE, "10/s"],
        0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"a\nb\nc\n")
    assert child.stdout.readline() == b"a\n"
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=NEVER)
    assert (child.returncode, out, said) == (0, b"b\nc\n", b"")


# -- Ctrl-C and commands


@posix
@pytest.mark.parametrize("jobs", [1, 3])
def test_interrupted_commands_that_run_are_waited_for(tmp_path, jobs):
    data = numbers(10)
    source, writing = filled_pipe(data)
    script = f"echo begun; sleep 1; echo $0 >> {tmp_path}/ended"
    child = start("100/s", "--jobs", str(jobs), "--", "sh", "-c", script, "{}", source=source)
    for _ in range(jobs):
        assert child.stdout.readline() == b"begun\n"
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=NEVER)
    os.close(writing)
    assert (child.returncode, out) == (130, b"")
    assert said == f"headway: interrupted after {jobs} line{'s' * (jobs > 1)}\n".encode()
    ended = tmp_path.joinpath("ended").read_bytes().splitlines()
    assert sorted(ended) + rest_of(source).splitlines() == data.splitlines()
    os.close(source)


@posix
def test_interrupted_twice_it_does_not_wait():
    source, writing = filled_pipe(b"a\n")
    child = start("100/s", "--", "sh", "-c", "echo begun; exec sleep 300", source=source)
    assert child.stdout.readline() == b"begun\n"
    begin = time.monotonic()
    child.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert child.poll() is None
    # On a machine that is too busy to deal with the first one meanwhile, the second is none.
    while child.poll() is None and time.monotonic() - begin < NEVER:
        child.send_signal(signal.SIGINT)
        time.sleep(0.5)
    assert child.wait(NEVER) == 130
    os.set_blocking(child.stderr.fileno(), False)
    assert not child.stderr.read(), "no traceback"
    os.close(source)
    os.close(writing)
    child.stdout.close()
    child.stderr.close()


@posix
def test_interrupted_after_the_last_line_was_started():
    child = start("100/s", "--", "sh", "-c", "echo begun; sleep 1; echo ended", source=subprocess.PIPE)
    child.stdin.write(b"a\n")
    child.stdin.close()
    child.stdin = None
    assert child.stdout.readline() == b"begun\n"
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=NEVER)
    assert (child.returncode, out, said) == (130, b"ended\n", b"headway: interrupted after 1 line\n")


# -- ends


def test_the_end_of_the_input_is_not_paced():
    """It does not wait an hour to learn that a file or a pipe has no second line, or no line at all."""
    begin = time.monotonic()
    assert pace("1/hour").returncode == 0
    assert (
        subprocess.run([*PACE, "1/hour"], stdin=subprocess.DEVNULL, timeout=60, check=False).returncode == 0
    )
    assert pace("3600/hour,1.1", lines="a\n").stdout == b"a\n"
    assert time.monotonic() - begin < 30


@posix
def test_a_line_that_comes_in_pieces():
    child = start("500/s", source=subprocess.PIPE)
    for piece in (b"a", b"b\nc", b"", b"d\n\n", b"e"):
        child.stdin.write(piece)
        child.stdin.flush()
        time.sleep(0.05)
    out, said = child.communicate(timeout=NEVER)
    assert (child.returncode, out, said) == (0, b"ab\ncd\n\ne", b"")


@posix
def test_a_long_line_takes_time_in_proportion_to_its_length():
    """Of a pipe, byte by byte, and with its end: what follows is left to the next reader."""

    def seconds(size):
        reading, writing = os.pipe()
        lines = Lines(reading, SigintGuard(), sparing=True)
        text = b"x" * size + b"\n"
        feeder = threading.Thread(target=os.write, args=(writing, text + b"next\n"))
        feeder.start()
        begin = time.process_time()
        assert lines.line() == text
        spent = time.process_time() - begin
        feeder.join()
        assert os.read(reading, 100) == b"next\n"
        os.close(reading)
        os.close(writing)
        return spent

    assert seconds(1_600_000) < 8 * max(0.05, min(seconds(400_000) for _ in range(3)))


def test_long_lines_and_many():
    lines = "".join("x" * size + "\n" for size in (0, 1, 8190, 8191, 8192, 8193, 100_000, 0, 3)) * 2
    assert pace("1e6/s", lines=lines).stdout == lines.encode()
    assert pace("500/s", lines=lines).stdout == lines.encode()


@posix
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_a_line_is_not_taken_for_a_reader_that_has_left(tmp_path, kind):
    data = numbers(1000)
    tmp_path.joinpath("lines").write_bytes(data)
    with tmp_path.joinpath("lines").open("rb") as file:
        source = file.fileno() if kind == "file" else filled_pipe(data)[0]
        child = start("20/s", source=source)
        got = child.stdout.readline() + child.stdout.readline()
        child.stdout.close()
        assert child.wait(NEVER) == 0
        assert child.stderr.read() == b""
        child.stderr.close()
        os.set_blocking(source, False)
        rest = os.read(source, 1 << 16)
        assert got + rest == data


@posix
def test_input_and_output_that_do_not_work():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*PACE, "9/s"], input=b"a\n", stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"headway: <stdout>: No space left on device\n")
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *PACE, "9/s"], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"headway: there is no input: stdin is closed\n")
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *PACE, "9/s"],
        input=b"a\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        1,
        b"headway: <stdout> is closed, so there is nowhere to write to\n",
    )
