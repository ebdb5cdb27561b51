"""Every ```python block of README.md and docs/ runs, top to bottom, one namespace per page.

A block with `>>>` is a doctest, any other is run as it stands. "```python no-run" is for what needs the world
outside (a server, an account): it is only compiled.
"""

import ast
import doctest
import re
from pathlib import Path

import pytest

from headway.limiter.limiter import Limiter
from headway.limiter.shared_options import DEFAULTS

ROOT = Path(__file__).parent.parent
PAGES = [page for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] if page.exists()]
BLOCK = re.compile(r"^```python[ ]*(?P<flag>[^\n]*)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)


def run(page, text):
    names = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        code, line = block["code"], text.count("\n", 0, block.start()) + 1
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, names, f"{page}:{line}", page, line)
            if block["flag"] != "no-run":
                doctest.DebugRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
                names = test.globs
        else:
            tree = ast.parse("\n" * line + code, page)
            if block["flag"] != "no-run":
                exec(compile(tree, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_runs(page, monkeypatch):
    # Whatever the default, a machine that is busy with other tests does not answer in a quarter of a second.
    monkeypatch.setitem(Limiter.__init__.__kwdefaults__, "engine_timeout", 5.0)
    monkeypatch.setitem(DEFAULTS, "engine_timeout", 5.0)
    run(str(page), page.read_text(encoding="utf-8"))


def anchors(page):
    """What a link into a page may name: its headings, as GitHub writes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "examples" / "README.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        place, _, anchor = link.partition("#")
        if not place.startswith("http"):
            other = (page.parent / place).resolve() if place else page
            assert other.exists(), link
            assert not anchor or anchor in anchors(other), link


def test_a_wrong_page_fails():
    run("page.md", "```python\nx = 1\n```\n\n```python\n>>> x\n1\n```\n\n```python no-run\nx.y\n```\n")
    with pytest.raises(doctest.DocTestFailure):
        run("page.md", "```python\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(NameError):
        run("page.md", "```python\nunknown\n```\n")
