"""The console: how long after the answer to a call a page shows it, and what it costs a server to be watched.

A server of its own (`headway serve` on `memory://`) and the system's Chromium. The page itself measures: from the
moment when the answer of an acquire is there, in the page, until the row of its limit shows what is left then. Calls
come at random moments, so every phase of the sampler is met. The server's cost is its CPU time while clients stream
`/v1/live` of 100 limits with traffic on ten of them, less the same without clients.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.alone import in_own_process
from bench.figure import Effort, Figure, Findings, NotMeasured, Reading, Section

LIMITS = 100
WATCHERS = 10
CONFIG = '[server]\nengine = "memory://"\n' + "".join(
    f'[limits.api-{number}]\nlimit = "5000/hour"\n' for number in range(LIMITS)
)
MEASURE = """async (calls) => {
  const left = document.querySelector("tr.limit td.left .meter-text");
  const spans = [];
  for (let i = 0; i < calls; i += 1) {
    await new Promise((done) => setTimeout(done, 300 + 1000 * Math.random()));
    const response = await fetch("v1/acquire", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ limit: "api-0" }),
    });
    const { status } = await response.json();
    const begun = performance.now();
    const wanted = `${status.remaining} of 5000`;
    await new Promise((done) => {
      const look = () => left.textContent === wanted && (observer.disconnect(), done());
      const observer = new MutationObserver(look);
      observer.observe(left, { childList: true, characterData: true, subtree: true });
      look();
    });
    spans.push(performance.now() - begun);
  }
  return spans;
}"""


@contextlib.contextmanager
def server() -> Iterator[tuple[str, int]]:
    """The URL and the process id of a server."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "headway.toml"
        file.write_text(CONFIG)
        process = subprocess.Popen(
            [sys.executable, "-m", "headway.cli", "serve", "--port", "0", "--config", str(file)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                found = re.search(r"http://[\d.]+:\d+", line)
                if found:
                    break
            else:
                raise NotMeasured("the server did not start")
            yield found[0], process.pid
        finally:
            process.terminate()
            process.wait(30)
            process.stdout.close()


def page_spans(url: str, calls: int) -> list[float]:
    """Milliseconds from an answer until the page shows it."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise NotMeasured("needs chromium: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise NotMeasured("needs playwright: pip install playwright") from None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = browser.new_page()
            page.set_default_timeout(120_000)
            page.goto(url)
            page.wait_for_selector("#connection[data-state=live]")
            return [float(span) for span in page.evaluate(MEASURE, calls)]
        finally:
            browser.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(url: str, pid: int, watchers: int, seconds: float) -> float:
    """CPU time of the server over real time, while so many watch and ten calls a second come."""
    host = url.removeprefix("http://")
    ended = threading.Event()

    def watch() -> None:
        connection = http.client.HTTPConnection(host, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/live", headers={"Accept": "text/event-stream"})
            reply = connection.getresponse()
            while not ended.is_set() and reply.readline():
                pass

    threads = [threading.Thread(target=watch, daemon=True) for _ in range(watchers)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    calls = http.client.HTTPConnection(host, timeout=60)
    with contextlib.closing(calls):
        begun, before = time.monotonic(), cpu_seconds(pid)
        number = 0
        while time.monotonic() < begun + seconds:
            body = json.dumps({"limit": f"api-{number % 10}"})
            calls.request("POST", "/v1/acquire", body, {"Content-Type": "application/json"})
            calls.getresponse().read()
            number += 1
            time.sleep(0.1)
        share = (cpu_seconds(pid) - before) / (time.monotonic() - begun)
    ended.set()
    for thread in threads:
        thread.join(30)
    return share


@in_own_process()
def console(effort: Effort) -> Findings:
    found = Findings()
    with server() as (url, pid):
        spans = page_spans(url, 10 if effort.quick else 60)
        note = f"median {statistics.median(spans):.0f} ms of {len(spans)} calls"
        found.readings["console-late"] = Reading(max(spans), note=note)
        seconds = 4.0 if effort.quick else 15.0
        alone, one, ten = (cost(url, pid, watchers, seconds) for watchers in (0, 1, WATCHERS))
        found.readings["console-cost"] = Reading(
            ten - alone, note=f"for one watcher {100 * (one - alone):.2g} %"
        )
    return found


SECTION = Section(
    "console",
    "The console",
    (
        Figure("console-late", "the page shows a change: the slowest", console, "<=", 1000, "ms"),
        Figure(
            "console-cost",
            f"{LIMITS} limits, {WATCHERS} watchers: the server's share of a core for them",
            console,
            unit="%",
        ),
    ),
)
