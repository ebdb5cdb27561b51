"""The programs of docs/task-queues.md, written to a folder with the addresses of a test's servers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "task-queues.md"

PARTNER = """
def post(order):
    with open({notes!r}, "a") as calls:
        calls.write(f"{{order}}\\n")
"""


class Page:
    """The program of one section; a change that finds nothing to change fails."""

    def __init__(self, section: str, folder: Path, changes: dict[str, str]) -> None:
        pattern = rf"^## {section}$.*?^```python no-run\n(.*?)^```"
        found = re.search(pattern, PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        assert found, f"no program for {section} in {PAGE}"
        text = found[1]
        for documented, changed in changes.items():
            assert documented in text, f"{documented} is not there any more"
            text = text.replace(documented, changed)
        # "# app.py, run with: gunicorn app:app" begins a file.
        _, *parts = re.split(r"^# (\w+\.py)(?:, run with: (.*))?$", text, flags=re.MULTILINE)
        for file, code in zip(parts[::3], parts[2::3], strict=True):
            (folder / file).write_text(code)
        self.command = shlex.split(parts[1])
        self._calls = folder / "calls"
        (folder / "partner.py").write_text(PARTNER.format(notes=str(self._calls)))

    def calls(self) -> list[int]:
        return [int(line) for line in self._calls.read_text().split()] if self._calls.exists() else []
