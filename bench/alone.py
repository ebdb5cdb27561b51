"""A probe in a process of its own: another form of headway, no other threads, memory not used before."""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench.figure import Effort, Findings, NotMeasured, Probe, Reading, Row

ROOT = Path(__file__).parent.parent


def in_own_process(**environment: str) -> Callable[[Probe], Probe]:
    """Decorate a probe: calling it starts Python anew, with these variables set, and brings its findings back."""

    def decorate(probe: Probe) -> Probe:
        @functools.wraps(probe)
        def start(effort: Effort) -> Findings:
            command = [sys.executable, "-m", "bench.alone", probe.__module__, probe.__qualname__]
            done = subprocess.run(
                [*command, json.dumps(asdict(effort))],
                cwd=ROOT,
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise NotMeasured(done.stderr.strip().rpartition("\n")[2])
            found = json.loads(done.stdout)
            return Findings(
                readings={name: Reading(**reading) for name, reading in found["readings"].items()},
                rows=[Row(**row) for row in found["rows"]],
            )

        return start

    return decorate


def main() -> None:
    module, name, effort = sys.argv[1:]
    probe = getattr(importlib.import_module(module), name).__wrapped__
    try:
        found = probe(Effort(**json.loads(effort)))
    except NotMeasured as reason:
        sys.exit(str(reason))
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
