"""Clients that are not ours, on a real server: connect, subscribe, receipt, heart-beat, resume, error."""

import json
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from tests.conftest import needs_program
from tests.stomp.served import served

import stomp  # type: ignore[import-untyped]
from headway import Once
from headway.once import stomp_app
from waiting import NEVER, wait_until

CLIENTS = Path(__file__).parent / "clients"
STOMPJS = CLIENTS / "node_modules/@stomp/stompjs/bundles/stomp.umd.js"
NPM = "npm install --no-package-lock --no-audit --no-fund --prefix tests/stomp/clients"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_stompjs = pytest.mark.skipif(not STOMPJS.exists(), reason=f"needs @stomp/stompjs and ws: {NPM}")
needs_node = needs_program("node", install="apt-get install nodejs npm")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")

pytestmark = pytest.mark.realtime


@pytest.fixture
def gate():
    return Once(60)


@pytest.fixture
def port(gate):
    app = stomp_app({"a": gate}, heart_beat=(1000, 1000))
    with served(app) as port:
        yield port
    assert app._feeds == {}


# -- @stomp/stompjs ------------------------------------------------------------------------------------------


def check(seen, gate):
    """What a client saw of the scenario, against what the gate says."""
    assert seen["protocol"] == "v12.stomp"
    assert seen["connected"]["version"] == "1.2"
    assert seen["connected"]["heart-beat"] == "1000,1000"
    submitted, published, *missed = gate.changes()
    assert seen["accepted"] == {
        "receipt-id": "receipt of pizza", "accepted": "true", "id": submitted.id, "clock": "1",
        "due": seen["accepted"]["due"],
    }  # fmt: skip
    assert seen["repeat"]["accepted"] == "false"
    assert seen["repeat"]["conflict"] == submitted.id
    key_frame, *changes = seen["before"]
    assert key_frame["headers"]["kind"] == "KEY_FRAME"
    assert key_frame["body"]["pending"] == []
    wanted = [change._asdict() | {"status": change.status.name} for change in (submitted, published)]
    assert [change["body"] for change in changes] == wanted
    assert [change["headers"]["clock"] for change in changes] == ["1", "2"]
    assert seen["stillThere"]
    assert seen["pings"] >= 2
    assert seen["pongs"] >= 2
    assert [change["body"]["clock"] for change in seen["after"]] == [3, 4]
    assert [change["body"]["id"] for change in seen["after"]] == [line.id for line in missed]
    assert seen["error"]["headers"]["message"] == "there is no gate 'b'; gates: a"
    assert seen["closed"] == {"code": 1002, "reason": "there is no gate 'b'; gates: a"}


@needs_node
@needs_stompjs
def test_stompjs_on_node(port, gate):
    command = ["node", str(CLIENTS / "node_client.mjs"), f"ws://127.0.0.1:{port}/any/path"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * NEVER, check=False)
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout), gate)


@needs_stompjs
@needs_chromium
def test_stompjs_in_chromium(port, gate):
    from playwright.sync_api import sync_playwright

    flags = ["no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"]
    flags += ["disable-component-update", "disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[f"--{flag}" for flag in flags])
        try:
            page = browser.new_page()
            page.set_default_timeout(3000 * NEVER)
            page.add_script_tag(content=STOMPJS.read_text())
            page.add_script_tag(content=(CLIENTS / "scenario.js").read_text())
            seen = page.evaluate("url => scenario(StompJs, url)", f"ws://127.0.0.1:{port}/")
        finally:
            browser.close()
    check(seen, gate)


# -- stomp.py ------------------------------------------------------------------------------------------------


class Listener(stomp.ConnectionListener):  # type: ignore[misc]
    def __init__(self):
        self.frames = []
        self.beats = 0
        self.disconnected = threading.Event()

    def on_connected(self, frame):
        self.frames.append(("CONNECTED", frame))

    def on_message(self, frame):
        self.frames.append(("MESSAGE", frame))

    def on_receipt(self, frame):
        self.frames.append(("RECEIPT", frame))

    def on_error(self, frame):
        self.frames.append(("ERROR", frame))

    def on_heartbeat(self):
        self.beats += 1

    def on_heartbeat_timeout(self):
        self.frames.append(("LOST", None))

    def on_disconnected(self):
        self.disconnected.set()

    def of(self, kind):
        return [frame for one, frame in self.frames if one == kind]

    def wait_for(self, kind, count=1):
        wait_until(lambda: len(self.of(kind)) >= count, kind)
        return self.of(kind)


def connected(port):
    connection = stomp.WSStompConnection(
        [("127.0.0.1", port)], heartbeats=(1000, 1000), reconnect_attempts_max=1
    )
    listener = Listener()
    connection.set_listener("", listener)
    connection.connect(wait=True)
    return connection, listener


def test_stomp_py(port, gate):
    connection, listener = connected(port)
    (answer,) = listener.of("CONNECTED")
    assert answer.headers["version"] == "1.2"
    connection.subscribe("/topic/gates/a", id="1")
    (key_frame,) = listener.wait_for("MESSAGE")
    assert key_frame.headers["kind"] == "KEY_FRAME"
    connection.send("/app/gates/a", json.dumps({"event": "pizza", "id": "p", "value": "ü"}), receipt="r")
    (receipt,) = listener.wait_for("RECEIPT")
    assert (receipt.headers["accepted"], receipt.headers["id"], receipt.headers["clock"]) == (
        "true",
        "p",
        "1",
    )
    _, submitted, published = listener.wait_for("MESSAGE", 3)
    assert json.loads(submitted.body) == gate.changes()[0]._asdict() | {"status": "SUBMITTED"}

    time.sleep(2.5)
    assert listener.beats >= 2
    assert listener.of("LOST") == []
    assert connection.is_connected()
    connection.disconnect(receipt="bye")
    assert listener.disconnected.wait(NEVER)

    gate.submit("taco")
    connection, listener = connected(port)
    connection.subscribe("/topic/gates/a", id="1", headers={"since": published.headers["message-id"]})
    missed = listener.wait_for("MESSAGE", 2)
    assert [frame.headers["clock"] for frame in missed] == ["3", "4"]

    connection.send("/app/gates/b", "{}")
    (error,) = listener.wait_for("ERROR")
    assert error.headers["message"] == "there is no gate 'b'; gates: a"
    assert listener.disconnected.wait(NEVER)
