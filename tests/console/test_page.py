"""The console in a real Chromium: it shows what happens, does what it is told, and comes back."""

import re
import signal
import socket

import pytest
from tests.console.browser import console, needs_chromium
from tests.service.processes import Process, served

from waiting import wait_until

pytestmark = [pytest.mark.realtime, pytest.mark.slow, needs_chromium]

CONFIG = """
[server]
engine = "memory://"
[limits.api]
limit = "5/minute"
[limits.calls]
limit = "2 concurrent"
[limits.llm]
limit = { requests = "10/minute", tokens = "1000/minute" }
[gates.alarms]
duration = "60s"
mode = "strict"
[gates.orders]
duration = "60s"
"""
TOKENS = {role: f"{role}-token-0123456789" for role in ("read", "use", "admin")}
WITH_TOKENS = CONFIG + "".join(
    f'[tokens.{role}]\ntoken = "{token}"\nrole = "{role}"\n' for role, token in TOKENS.items()
)


@pytest.fixture
def server(tmp_path):
    with served(tmp_path, CONFIG) as process:
        yield process


def test_the_page_loads_from_this_server_alone_and_has_no_inline_script(browser, server):
    asked = []
    with console(browser, server.url) as page:
        page.page.on("request", lambda request: asked.append(request.url))
        page.page.reload()
        page.wait_for_state("live")
        assert page.page.title() == "headway"
        assert all(url.startswith(server.url) for url in asked)
        assert len(asked) >= 8
        assert page.page.get_by_role("main").count() == page.page.get_by_role("banner").count() == 1
        names = page.page.get_by_role("row").get_by_role("button").all_inner_texts()
        assert names == ["api", "calls", "llm"]
        for name in ("alarms", "orders"):
            page.gate(name).wait_for()
    reply = server.client.get("/")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    html = reply.body.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
    again = server.client.get("/", **{"If-None-Match": reply.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


def test_a_change_is_shown(browser, server):
    """In the order in which it happens: the page shows what the answer of each call says."""
    with console(browser, server.url) as page:
        left = page.row("api").locator("td.left")
        page.says(left, "5 of 5")
        for remaining in (4, 3, 2, 1, 0):
            assert server.acquire("api").body["status"]["remaining"] == remaining
            page.says(left, f"{remaining} of 5")
        assert server.acquire("api").status == 429
        page.row("api").locator("td[data-label='Denied/s'].alarm").wait_for()
        chart = page.row("api").get_by_role("img", name="last 5 minutes: 5 granted, 1 denied")
        chart.wait_for()
        assert chart.locator("path.granted").get_attribute("d")
        assert chart.locator("path.denied").get_attribute("d")
        page.says(page.detail("api").locator(".totals"), "5 granted and 1 denied")


def test_keys_holders_and_waiters_are_shown(browser, server):
    with console(browser, server.url) as page:
        for key in ("alice", "bob"):
            server.acquire("api", key=key)
            page.says(page.detail("api").locator("[data-rows=ledgers]"), key)
        server.acquire("calls", key="alice", lease=50)
        page.says(page.row("calls").locator("[data-label=Held]"), "1")
        page.says(
            page.detail("calls").locator("[data-rows=holders] tr", has_text="alice"), re.compile(r"\d+ s")
        )
        for _ in range(2):
            server.acquire("calls")
        body = '{"limit": "calls", "wait": 600}'
        server.connect(
            f"POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        )
        page.says(page.row("calls").locator("[data-label=Waiting]"), "1")


def test_limits_that_come_and_go_are_shown(browser, server):
    with console(browser, server.url) as page:
        for number in range(6):
            path = f"/v1/limits/extra-{number}"
            body = b'{"limit": "9/s"}'
            server.client.request("PUT", path, body, {"Content-Type": "application/json"})
        page.row("extra-5").wait_for()
        page.says(page.row("extra-5"), "by the API")
        page.page.get_by_label("Show only limits whose name contains").fill("a-5")
        page.row("api").wait_for(state="hidden")
        assert page.row("extra-5").is_visible()
        page.page.get_by_label("Show only limits whose name contains").fill("")
        server.client.request("DELETE", "/v1/limits/extra-5")
        page.row("extra-5").wait_for(state="detached")
        page.says(page.page.locator("#limits-count"), "8")


def test_a_permit_is_taken_and_ended_by_hand(browser, server):
    with console(browser, server.url, complains=("429",)) as page:
        form = page.form("take", "api")
        form.get_by_label("Key").fill("alice")
        form.get_by_label("Cost").fill("4")
        form.get_by_role("button", name="Take").click()
        page.says(form.locator("output.good"), "granted, 1 left")
        form.get_by_role("button", name="Take").click()
        page.says(form.locator("output.bad"), "the limit is used up")
        assert form.get_by_role("button", name="End it").is_hidden()

        form = page.form("take", "calls")
        form.get_by_role("button", name="Take").click()
        page.says(form.locator("output.good"), "held for 60 s")
        page.says(page.row("calls").locator("[data-label=Held]"), "1")
        form.get_by_role("button", name="End it").click()
        page.says(form.locator("output.good"), "ended")
        page.says(page.row("calls").locator("[data-label=Held]"), "0")

        form = page.form("take", "llm")
        form.get_by_label("Cost, tokens").fill("250")
        form.get_by_role("button", name="Take").click()
        form.locator("output.good").wait_for()
        page.says(page.detail("llm"), "750 of 1000")
        page.says(page.detail("llm"), "9 of 10")


def test_a_limit_is_paused_and_changed_by_hand(browser, server):
    with console(browser, server.url, complains=("422",)) as page:
        form = page.form("pause", "api")
        form.get_by_label("Seconds").fill("90")
        form.get_by_role("button", name="Pause").click()
        page.says(page.row("api").locator(".chip.hot"), "paused")
        assert server.acquire("api").body["reason"] == "paused"
        form.get_by_role("button", name="Lift").click()
        page.row("api").locator(".chip.hot").wait_for(state="detached")
        assert server.acquire("api").status == 200

        form = page.form("change", "api")
        wait_until(lambda: form.get_by_label("Limit").input_value() == "5/minute", "what it is now")
        form.get_by_label("Limit").fill("50 / sparrow")
        form.get_by_role("button", name="Change").click()
        form.locator("output.bad").wait_for()
        form.get_by_label("Limit").fill("50/minute")
        form.get_by_role("button", name="Change").click()
        page.says(page.row("api").locator("code"), "50/minute")
        page.says(page.row("api").locator("td.left"), "49 of 50")

        form = page.form("change", "llm")
        wait_until(lambda: form.locator("input").count() == 2, "a field for each metric")
        form.get_by_label("tokens").fill("2000/minute")
        form.get_by_role("button", name="Change").click()
        page.says(page.row("llm").locator("code"), "tokens: 2000/minute")
        assert server.client.get("/v1/limits/llm").body["config"]["limit"]["requests"] == "10/minute"


def test_an_event_is_submitted_by_hand_and_counts_down(browser, server):
    with console(browser, server.url, complains=("409",)) as page:
        gate = page.gate("alarms")
        field = gate.get_by_role("textbox", name="Submit an event")
        field.fill("disk full")
        gate.get_by_role("button", name="Submit").click()
        page.says(gate.locator("output.good"), "published in 60 s unless it is repeated")
        due = gate.locator("[data-rows=upcoming] tr.due", has_text="disk full").locator(".when")
        first = due.inner_text()
        wait_until(lambda: due.inner_text() != first, "the countdown")
        assert int(due.inner_text().split()[0]) < int(first.split()[0]) <= 60
        assert field.input_value() == ""
        field.fill("disk full")
        gate.get_by_role("button", name="Submit").click()
        page.says(gate.locator("output.bad"), "it repeats the event")
        page.says(gate.locator("[data-rows=recent]"), "invalidated")
        page.says(gate.locator("[data-rows=upcoming]"), "nothing")
        other = page.gate("orders")
        other.get_by_role("textbox").fill("order 7")
        other.get_by_role("textbox").press("Enter")
        page.says(other.locator("[data-rows=recent]"), "published")


def test_what_looks_like_markup_stays_text(browser, server):
    text = "<img src=x onerror=alert(1)>"
    with console(browser, server.url) as page:
        server.acquire("calls", key=text)
        server.client.post("/v1/gates/alarms/events", {"event": text})
        page.says(page.detail("calls").locator("[data-rows=ledgers]"), text)
        page.says(page.gate("alarms").locator("[data-rows=upcoming]"), text)
        assert page.page.locator("img").count() == 0


def test_a_token_decides_what_the_page_offers(browser, tmp_path):
    with (
        served(tmp_path, WITH_TOKENS) as server,
        console(browser, server.url, state="lost", complains=("401",)) as page,
    ):
        field = page.page.get_by_label("Token kept in this tab")
        page.says(page.page.locator("#connection"), "a token is needed")
        links = page.page.locator("footer a:visible")
        assert links.all_inner_texts() == ["API"]  # a link cannot send a token
        for wrong in ("", "not-a-token-0123456789"):
            if wrong:
                field.fill(wrong)
                field.press("Enter")
                page.says(page.page.locator("#connection"), "this token is not known here")
            wait_until(field.is_visible, "the field")
            assert page.page.locator("tr.limit").count() == 0
        for role, token in TOKENS.items():
            if field.is_hidden():
                page.page.get_by_role("button", name="Token").click()
            field.fill(token)
            field.press("Enter")
            page.says(page.page.locator("#role"), role)
            page.detail("api").wait_for()
            offers = [page.form(action, "api").is_visible() for action in ("take", "pause", "change")]
            assert (
                offers
                == {
                    "read": [False] * 3,
                    "use": [True, False, False],
                    "admin": [True] * 3,
                }[role]
            )
            submit = page.gate("alarms").get_by_role("button", name="Submit")
            assert submit.is_visible() == (role != "read")
            note = page.detail("api").get_by_text("This token may look, and not act.")
            assert note.is_visible() == (role == "read")
        assert page.page.evaluate("[sessionStorage.length, localStorage.length]") == [1, 0]
        assert TOKENS["admin"] not in page.page.content()
        page.form("take", "api").get_by_role("button", name="Take").click()
        page.says(page.form("take", "api").locator("output.good"), "granted")
        page.page.get_by_role("button", name="Token").click()
        page.page.get_by_role("button", name="Forget it").click()
        page.wait_for_state("lost")
        assert page.page.evaluate("sessionStorage.length") == 0


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def test_the_page_comes_back_after_a_restart(browser, tmp_path):
    file = tmp_path / "served.toml"
    file.write_text(CONFIG)
    options = ("--config", str(file), "--port", str(free_port()))
    first = Process(*options, folder=tmp_path)
    try:
        with console(browser, first.url, complains=("ERR_",)) as page:
            page.detail("api").wait_for()
            page.page.get_by_role("button", name="api", exact=True).focus()
            first.end(signal.SIGKILL)
            page.wait_for_state("lost")
            assert page.page.locator(".top").evaluate("top => getComputedStyle(top).position") == "sticky"
            file.write_text(
                CONFIG.replace("[limits.calls]", "[limits.renamed]").replace("5/minute", "7/minute")
            )
            second = Process(*options, folder=tmp_path)
            try:
                page.wait_for_state("live")
                page.row("renamed").wait_for()
                page.row("calls").wait_for(state="detached")
                page.says(page.row("api").locator("td.left"), "7 of 7")
                field = page.form("change", "api").get_by_label("Limit")
                wait_until(lambda: field.input_value() == "7/minute", "what it is now")
                # What was open and focused is still so.
                button = page.page.get_by_role("button", name="api", exact=True)
                assert button.get_attribute("aria-expanded") == "true"
                assert button.evaluate("button => button === document.activeElement")
            finally:
                assert second.end() == 0  # a page that watches does not keep a server from ending
            page.wait_for_state("lost")
    finally:
        if first.child.poll() is None:
            first.end()
        first.forget()


HIDING = """
let hidden = false;
Object.defineProperty(document, "hidden", { get: () => hidden });
window.hide = (value) => { hidden = value; document.dispatchEvent(new Event("visibilitychange")); };
"""


def test_a_hidden_page_gives_its_connection_back(browser, server):
    begun, given_back = [], []
    with console(browser, server.url, init=HIDING) as page:
        page.page.on("request", lambda request: begun.append(request.url))
        page.page.on("requestfailed", lambda request: given_back.append(request.url))
        page.page.evaluate("hide(true)")
        page.wait_for_state("resting")
        wait_until(lambda: page.page.evaluate("1") and given_back, "the end of the request")
        assert given_back == [f"{server.url}/v1/live"]
        assert begun == []
        server.acquire("api")
        page.page.evaluate("hide(false)")
        page.wait_for_state("live")
        assert begun == [f"{server.url}/v1/live"]
        page.says(page.row("api").locator("td.left"), "4 of 5")
