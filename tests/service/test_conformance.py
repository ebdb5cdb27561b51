"""The OpenAPI description against the real server: requests made from it, and a client generated from it."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.service.conformance import INSTALL, TOOLS, attack
from tests.service.processes import served

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.slow,
    pytest.mark.skipif(not (TOOLS / "st").exists(), reason=f"needs schemathesis: {INSTALL}"),
]


def test_no_fault_and_no_answer_that_is_not_described(tmp_path):
    """`python -m tests.service.conformance` is the longer one."""
    clean, said = attack(tmp_path, examples=10, seed=11, phases="coverage,fuzzing")
    assert clean, said


SERVED = """
[limits.api]
limit = "1/minute"
[limits.calls]
limit = "5 concurrent"
[limits.llm]
limit = { requests = "500/minute", tokens = "30000/minute" }
[gates.orders]
duration = "5min"
[tokens.app]
token = "app-token-0123456789"
role = "admin"
"""


def test_a_generated_client_works(tmp_path):
    """openapi-python-client makes a client from what the server describes, without a word of complaint."""
    with served(tmp_path, SERVED, "--engine", "memory://") as process:
        file = tmp_path / "openapi.json"
        file.write_text(json.dumps(process.client.get("/openapi.json").body))
        words = ("generate", "--path", str(file), "--meta", "none", "--fail-on-warning")
        folder = ("--output-path", str(tmp_path / "headway_client"))
        path = f"{TOOLS}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # it formats with ruff
        run([str(TOOLS / "openapi-python-client"), *words, *folder], PATH=path)
        script = Path(__file__).parent / "generated_client.py"
        said = run(
            [str(TOOLS / "python"), str(script), process.url, "app-token-0123456789"],
            PYTHONPATH=str(tmp_path),
        )
        assert said == "all as described\n"


def run(command, **env):
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
