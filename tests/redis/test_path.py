"""The path of a decision can be read: few functions between `acquire` and the bytes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_decision_makes_26_calls_at_most(server) -> None:
    """In the interpreted form, granted at once and warm: `bench/path.py` lists the calls, with file and line."""
    program = [sys.executable, "-m", "bench.path", server.url]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[0] == "LocalLimiter.acquire"
    assert any(line.split()[0] == "Connection.call" for line in lines), done.stdout
    assert len(lines) - 1 <= 26, done.stdout
