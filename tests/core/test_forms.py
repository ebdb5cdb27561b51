"""Compiled equals interpreted: the same traces, ordinary and extreme, with the same answers and the same states."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.replay import CASES, commands_of, replay
from headway.clock import compiled

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def other_form() -> dict[str, list[list[int]]]:
    """The traces as the other form plays them."""
    environment = os.environ | {
        "HEADWAY_PURE": "1" if compiled else "0",
        "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", ""))),
    }
    program = [sys.executable, "-m", "core.replay"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if answer["compiled"] == compiled:
        pytest.skip(
            "no compiled form was built: python setup.py build_ext --inplace, with Cython and a C compiler"
        )
    traces: dict[str, list[list[int]]] = answer["traces"]
    return traces


@pytest.mark.parametrize("name", CASES)
def test_both_forms_agree_on_every_command(name, other_form) -> None:
    for seed, theirs in enumerate(other_form[name]):
        ours = replay(name, seed)
        if ours != theirs:
            at = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
            pytest.fail(f"seed {seed}: they part at command {at}, {commands_of(seed)[at]}")
