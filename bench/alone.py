"""A probe in a process of its own: another form of headway, no other threads, memory not used before."""

from __future__ import annotations

import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from bench.figure import Effort, Findings, NotMeasured, Probe, Reading, Row

ROOT = Path(__file__).parent.parent


def in_own_process(times: int = 1, **environment: str) -> Callable[[Probe], Probe]:
    """Decorate a probe: calling it starts Python anew, with these variables set, and brings its findings back.

    What differs from process to process more than within one is measured `times` times; the medians count.
    """

    def decorate(probe: Probe) -> Probe:
        @functools.wraps(probe)
        def start(effort: Effort) -> Findings:
            return middle([once(effort) for _ in range(times)])

        def once(effort: Effort) -> Findings:
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


def middle(runs: list[Findings]) -> Findings:
    """The reading in the middle for every figure, with the quartiles of all where there are several."""
    if len(runs) == 1:
        return runs[0]
    found = Findings(rows=runs[0].rows)
    for name in runs[0].readings:
        readings = sorted((run.readings[name] for run in runs), key=lambda reading: reading.value)
        low, _, high = statistics.quantiles([reading.value for reading in readings], n=4, method="inclusive")
        found.readings[name] = replace(readings[len(readings) // 2], low=low, high=high)
    return found


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
