"""Servers that enforce a limit by their own clock, in a process of their own, and tell what they counted."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

from bench.alone import ROOT

PATIENCE = 60


@contextlib.contextmanager
def remote(program: str, *words: object) -> Iterator[str]:
    """The address of a server in `tests/integrations`; it ends with the block."""
    path = ROOT / "tests" / "integrations" / program
    with subprocess.Popen(
        [sys.executable, str(path), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.stdin.close()


def counted(url: str) -> Any:
    """What the server counted."""
    with urllib.request.urlopen(f"{url}/figures", timeout=PATIENCE) as reply:
        return json.load(reply)
