"""The system's Chromium, and a console in it, as a person has it open."""

import shutil
from contextlib import contextmanager

import pytest

from waiting import NEVER

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
FLAGS = (
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
)


@contextmanager
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[f"--{flag}" for flag in FLAGS])
        try:
            yield browser
        finally:
            browser.close()


class Console:
    """A page of a browser. What it complains of is kept, and is nothing unless a test expects it."""

    def __init__(self, page, url):
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.set_default_timeout(1000 * NEVER)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._complain_of_dialog)

    def _complain_of_dialog(self, dialog):
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def open(self, state="live"):
        self.page.goto(self.url)
        self.wait_for_state(state)
        return self

    def wait_for_state(self, state):
        self.page.wait_for_selector(f"#connection[data-state={state}]")

    def row(self, name):
        return self.page.locator("tr.limit").filter(
            has=self.page.get_by_role("button", name=name, exact=True)
        )

    def detail(self, name):
        """What is below a limit, opened."""
        button = self.page.get_by_role("button", name=name, exact=True)
        if button.get_attribute("aria-expanded") != "true":
            button.click()
        return self.page.locator(f"#{button.get_attribute('aria-controls')}")

    def form(self, action, name):
        return self.detail(name).locator(f"form[data-action={action}]")

    def gate(self, name):
        return self.page.get_by_role("article", name=name)

    def says(self, locator, text):
        """Wait until something shows this text somewhere in it."""
        locator.filter(has_text=text).first.wait_for()

    def scrolls_sideways(self):
        # Not beside window.innerWidth: a phone makes that as wide as the page needs.
        return self.page.evaluate("document.documentElement.scrollWidth") > self.page.viewport_size["width"]


@contextmanager
def console(browser, url, *, state="live", init=None, complains=(), **options):
    """A page that is open. It may complain of what has one of these texts in it, and of nothing else."""
    options = {"viewport": {"width": 1280, "height": 900}, **options}
    context = browser.new_context(**options)
    try:
        page = context.new_page()
        if init is not None:
            page.add_init_script(init)
        found = Console(page, url)
        yield found.open(state)
        assert [text for text in found.complaints if not any(part in text for part in complains)] == []
    finally:
        context.close()
