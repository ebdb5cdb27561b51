"""Compiled equals interpreted here too: the same seeds give the same worlds, request by request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256

import pytest

from headway import compiled
from headway.lab import draw, run_world

SEEDS = range(150)

PROGRAM = """
import json, headway
from lab.test_forms import SEEDS, digest
print(json.dumps({"compiled": headway.compiled, "digests": [digest(seed) for seed in SEEDS]}))
"""


def digest(seed: int) -> str:
    """All that happened in a world, made short."""
    outcome = run_world(draw(seed, events=100), trace=True)
    told = (outcome.log, outcome.verdict, outcome.share, outcome.elapsed)
    return sha256(repr(told).encode()).hexdigest()


def test_both_forms_run_the_same_worlds(request):
    environment = os.environ | {
        "HEADWAY_PURE": "1" if compiled else "0",
        "PYTHONPATH": os.pathsep.join(
            (str(request.config.rootpath / "tests"), os.environ.get("PYTHONPATH", ""))
        ),
    }
    program = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    if theirs["compiled"] == compiled:
        pytest.skip(
            "no compiled form was built: python setup.py build_ext --inplace, with Cython and a C compiler"
        )
    ours = [digest(seed) for seed in SEEDS]
    assert [
        seed for seed, pair in enumerate(zip(ours, theirs["digests"], strict=True)) if pair[0] != pair[1]
    ] == []
