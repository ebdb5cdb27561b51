"""A server in a process of its own: it prints its port, tells its figures, and ends with its standard input."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from waiting import NEVER


class Server:
    """`program` is a file of this folder, which is called with the words."""

    def __init__(self, program, *words):
        command = [sys.executable, str(Path(__file__).with_name(program)), *map(str, words)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.url = f"http://127.0.0.1:{self._output.readline().strip()}"

    def figures(self):
        with urllib.request.urlopen(f"{self.url}/figures", timeout=NEVER) as reply:
            return json.load(reply)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._input.close()
        self._process.wait(NEVER)
        self._output.close()


class StrictServer(Server):
    """Enforces a sliding window by its own clock."""

    def __init__(self, count, seconds, says="nothing", halve_after=0):
        super().__init__("strict_server.py", count, seconds, says, halve_after)


class LanguageModels(Server):
    """Enforces requests and tokens by its own clock."""

    def __init__(self, requests, tokens, seconds):
        super().__init__("llm_server.py", requests, tokens, seconds)
