"""Both type checkers see a throttled function as the function: tests/typing has the samples.

`make check` runs mypy over them; here is pyright.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import find_program, needs_program

ROOT = Path(__file__).parents[2]

pytestmark = needs_program("pyright", install="make .venv/.check")


def pyright(*paths):
    """What it complains about, as (file, line, rule)."""
    done = subprocess.run(
        [find_program("pyright"), "--outputjson", "--pythonpath", sys.executable, *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] >= len(paths)
    return [
        f"{Path(found['file']).name}:{found['range']['start']['line'] + 1}: {found['message']}"
        for found in answer["generalDiagnostics"]
        if found["severity"] in ("error", "warning")
    ]


@pytest.mark.slow
def test_pyright_agrees(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text('from headway import throttle\n\nthrottle("5/s")(len)(5)\n')
    complaints = pyright(ROOT / "tests" / "typing", wrong)
    assert [line.partition(": ")[0] for line in complaints] == ["wrong.py:3"], "and it can complain"
