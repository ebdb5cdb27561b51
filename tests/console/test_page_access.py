"""The console by keyboard, on a phone, in the dark, and as a screen reader is told of it."""

from pathlib import Path

import pytest
from tests.console.browser import console, needs_chromium
from tests.service.processes import served

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
NPM = "npm install --no-package-lock --no-audit --no-fund --prefix tests/console"
needs_axe = pytest.mark.skipif(not AXE.exists(), reason=f"needs axe-core: {NPM}")

pytestmark = [pytest.mark.realtime, pytest.mark.slow, needs_chromium]

CONFIG = """
[server]
engine = "memory://"
[limits.api]
limit = "5/minute"
[limits.a-name-that-is-longer-than-a-phone-is-wide-and-has-no-end-at-all]
limit = { requests = "10/minute", tokens = "1000/minute", images = "3 concurrent" }
[limits.calls]
limit = "2 concurrent"
[limits.watched]
limit = "1/hour"
shadow = true
[gates.alarms]
duration = "60s"
mode = "strict"
"""
NARROW = {"width": 360, "height": 740}
WIDE = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("console"), CONFIG) as process:
        for key in ("alice", "k" * 300):
            process.acquire("api", key=key)
            process.acquire("calls", key=key)
        process.acquire("watched")
        process.acquire("watched")
        for event in ("disk full", "e" * 300, "disk full", "again"):
            process.client.post("/v1/gates/alarms/events", {"event": event})
        yield process


def open_all(page):
    for button in page.page.locator(".disclose").all():
        button.click()
    page.page.locator("[data-rows=upcoming] tr.due").first.wait_for()
    page.page.locator("form[data-action=change] input").nth(4).wait_for()


def test_all_can_be_done_by_keyboard(browser, server):
    with console(browser, server.url) as page:
        keyboard = page.page.keyboard
        keyboard.press("Tab")
        assert page.page.evaluate("document.activeElement.className") == "skip"
        keyboard.press("Enter")
        assert page.page.evaluate("document.activeElement.id") == "main"
        keyboard.press("Tab")
        assert page.page.evaluate("document.activeElement.textContent") == "api"
        outline = page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        keyboard.press("Enter")
        form = page.form("take", "api")
        keyboard.press("Tab")
        assert page.page.evaluate("document.activeElement.name") == "key"
        keyboard.type("by hand")
        keyboard.press("Enter")
        page.says(form.locator("output.good"), "granted, 4 left")
        # Every control can be reached, in the order of the page, and is seen to be.
        seen = []
        for _ in range(80):
            keyboard.press("Tab")
            what = page.page.evaluate(
                "[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]"
            )
            if what[0] == "BODY":
                break
            assert what[1] == "solid", what
            seen.append(
                page.page.evaluate("document.activeElement.textContent || document.activeElement.name")
            )
        assert [name for name in seen if name in ("Take", "Pause", "Lift", "Change", "Submit")] == [
            "Take",
            "Pause",
            "Lift",
            "Change",
            "Submit",
        ]
        # Space closes what Enter has opened.
        page.page.get_by_role("button", name="api", exact=True).focus()
        keyboard.press("Space")
        form.wait_for(state="hidden")


def test_what_is_shown_has_the_semantics_of_a_table(browser, server):
    for size in (WIDE, NARROW):
        with console(browser, server.url, viewport=size) as page:
            table = page.page.get_by_role("table", name="Limits")
            heads = table.get_by_role("columnheader").all_inner_texts()
            assert heads[:4] == ["Limit", "Last 5 minutes", "Granted/s", "Denied/s"]
            row = table.get_by_role("row").filter(has=page.page.get_by_role("rowheader", name="api"))
            assert row.get_by_role("cell").count() == 6


def test_a_phone_needs_no_scrolling_sideways(browser, server):
    with console(browser, server.url, viewport=NARROW, has_touch=True, is_mobile=True) as page:
        assert not page.scrolls_sideways()
        open_all(page)
        page.page.get_by_role("button", name="Token").click()
        assert not page.scrolls_sideways()
        small = page.page.evaluate(
            "[...document.querySelectorAll('form button, form input')].filter(one => one.offsetParent)"
            ".map(one => one.getBoundingClientRect().height).filter(height => height < 32)"
        )
        assert small == []


def test_the_page_is_dark_where_that_is_wanted(browser, server):
    def light(page, what):
        """How light a colour is, from 0 to 1."""
        text = page.page.evaluate(f"getComputedStyle(document.body).{what}")
        return sum(int(part) for part in text[4:-1].split(",")) / 765

    with console(browser, server.url, color_scheme="light") as page:
        assert light(page, "backgroundColor") > 0.9 > 0.2 > light(page, "color")
    with console(browser, server.url, color_scheme="dark") as page:
        assert light(page, "backgroundColor") < 0.1 < 0.8 < light(page, "color")


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axe_finds_nothing(browser, server, size, scheme):
    with console(browser, server.url, viewport=size, color_scheme=scheme) as page:
        open_all(page)
        page.form("take", "watched").get_by_role("button", name="Take").click()
        page.form("take", "watched").locator("output.good").wait_for()
        page.page.get_by_role("button", name="Token").click()
        page.page.evaluate(AXE.read_text())
        found = page.page.evaluate("axe.run()")
        assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found["violations"]] == []
        assert len(found["passes"]) > 30
