"""The commands on a machine that has no redis-py: those that need it say so, and the others do not care."""

import subprocess
import sys

import pytest

RUN = """
import sys
sys.modules["redis"] = sys.modules["hiredis"] = None
sys.argv[0] = "headway"
from headway.cli import main
main()
"""


def headway(*words):
    return subprocess.run(
        [sys.executable, "-c", RUN, *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "words", [("top", "redis://x"), ("inspect", "redis://x", "n"), ("reset", "redis://x", "n", "--yes")]
)
def test_what_needs_redis_says_what_to_install(words):
    done = headway(*words)
    assert done.returncode == 2
    assert "pip install 'redis[hiredis]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_others_work():
    assert headway("explain", "5/s").returncode == 0
    assert "top" in headway("--help").stdout
