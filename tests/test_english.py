"""Plain English: the subject of a sentence is a named thing (the batcher, a waiter, the server), never a person.

A sentence that begins with "Who comes late" or "Nobody waits" hides what acts. The check looks for the words
themselves, in whatever place: "a caller who" is "a caller that", "nobody polls" is "no process polls". It reads
Markdown pages, comments, docstrings and all other strings of Python (messages among them), comments of Lua, and plain
configuration files; what stands between backticks is code and is not read. In pages and tests it also looks for names
that the tree does not have any more. The names of tests are sentences too, and are read as such.

`python tests/test_english.py` prints how many there are in each folder.
"""

import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

# What is read. A new folder below one of these is read without a word here.
READ = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs",
    "examples",
    "src",
    "bench",
    "Makefile",
    ".ci",
    "pyproject.toml",
    "setup.py",
    "tests",
)
SUFFIXES = {".md", ".py", ".pxd", ".lua", ".toml", ".sh", ".c", ""}
# Not read: this file alone, since its examples are the sentences that it forbids.
OWN = "tests/test_english.py"

# (end of the path, part of the text, why it may stay). A possessive ("somebody else's API") is never reported.
EXCEPTIONS: tuple[tuple[str, str, str], ...] = ()

PERSON = re.compile(
    r"\b(who|whom|whoever|whomever|nobody|somebody|everybody|anybody|everyone|someone|anyone|no one|he|she|him)\b"
    r"(?!'s\b|’s\b| else's\b)",
    re.IGNORECASE,
)
# Pictures and names that the tree does not have any more, where they can be told from ordinary words.
RETIRED = re.compile(
    r"\b(FleetLimiter|FleetDesk|FleetPermit|Desk|Letterbox|PostWire|ThreadLane|TaskLane|Keeper|Lodging|Tenancy|Halt|Shelf|"
    r"desks?|lanes?|letters?|keepers?|errands?|bells?|shelf|shelves|farewell|lodging|vault|retarget\w*|letters\.py|"
    r"account\.py|wires\.py|place\.py|talk\.py|desk\.py)\b"
)
CODE = re.compile(r"``.+?``|`[^`\n]+`", re.DOTALL)
TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
COMMENT_OF_LUA = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)
STRINGS = {"STRING", "FSTRING_MIDDLE", "COMMENT"}


class Finding(NamedTuple):
    file: str
    line: int
    word: str
    text: str

    def __str__(self):
        return f"{self.file}:{self.line}: {self.word!r} in: {self.text}"


def prose(name, text):
    """(line, text) of every piece of prose in a file; code between backticks is blanked out."""
    if name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if tokenize.tok_name[token.type] in STRINGS:
                yield token.start[0], token.string
    elif name.endswith(".lua"):
        for comment in COMMENT_OF_LUA.finditer(text):
            yield text.count("\n", 0, comment.start()) + 1, comment.group()
    elif name.endswith(".pxd"):
        for number, line in enumerate(text.splitlines(), 1):
            yield number, line.partition("#")[2]
    else:
        yield 1, text


def findings(name, text, pattern=PERSON):
    for start, piece in prose(name, text):
        # The backticks of a fence are no inline code; a blank keeps the place of every other character.
        plain = CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group()), piece.replace("```", "   "))
        for match in pattern.finditer(plain):
            line = start + plain.count("\n", 0, match.start())
            around = piece.splitlines()[line - start].strip()
            if not any(name.endswith(end) and part in around for end, part, _ in EXCEPTIONS):
                yield Finding(name, line, match.group(), around)


def files(*names):
    for name in names:
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            relative = file.relative_to(ROOT).as_posix()
            if (
                file.is_file()
                and file.suffix in SUFFIXES
                and not {"__pycache__", "node_modules"} & set(file.parts)
                and relative != OWN
            ):
                yield relative


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_sentences_name_their_subject():
    found = [finding for name in files(*READ) for finding in findings(name, read(name))]
    assert not found, "say which thing it is that acts:\n" + "\n".join(map(str, found))


def test_pages_and_tests_use_the_names_of_the_tree():
    pages = files("README.md", "ARCHITECTURE.md", "docs", "tests")
    found = [finding for name in pages for finding in findings(name, read(name), RETIRED)]
    assert not found, "names that are gone:\n" + "\n".join(map(str, found))


def names_of_tests(name, text):
    """The names of a file and of its tests, as sentences."""
    if name.endswith(".py"):
        for said in [Path(name).stem, *TEST.findall(text)]:
            yield said.replace("_", " ")


def test_names_of_tests_name_their_subject():
    found = [
        f"{name}: {sentence}"
        for name in files("tests")
        for sentence in names_of_tests(name, read(name))
        if PERSON.search(sentence) or RETIRED.search(sentence)
    ]
    assert not found, "say which thing it is that acts, by its name in the tree:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "def test_who_waits_is_woken(limiter): ..."),
        ("a.py", "    async def test_the_keeper_sleeps(self): ..."),
        ("test_pause_retarget.py", ""),
    ],
)
def test_a_bad_name_of_a_test_is_found(name, text):
    sentences = list(names_of_tests(name, text))
    assert any(PERSON.search(sentence) or RETIRED.search(sentence) for sentence in sentences)


def test_exceptions_are_needed():
    for end, part, _ in EXCEPTIONS:
        assert any(name.endswith(end) and part in read(name) for name in files(*READ)), (end, part)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("page.md", "Nobody polls.", "Nobody"),
        ("page.md", "a caller\nwho waits", "who"),
        ("page.md", "```console\n$ top  # shows who waits\n```", "who"),
        ("a.py", "x = 1  # whoever comes first", "whoever"),
        ("a.py", 'def f():\n    """Everybody waits."""', "Everybody"),
        ("a.py", 'raise ValueError(f"{x}: no one waits")', "no one"),
        ("a.pxd", "cdef int x  # for someone", "someone"),
        ("a.lua", "local x = 1 -- he has to know", "he"),
        ("a.lua", "--[[ two lines\nfor anybody ]]", "anybody"),
    ],
)
def test_a_person_is_found(name, text, word):
    (found,) = findings(name, text)
    assert found.word == word
    assert word in found.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "for calls to somebody else's API; a permit whose call was answered"),
        ("page.md", "`who` and ``nobody`` are names here"),
        ("a.py", "who = nobody"),
        ("a.lua", "local who = nobody"),
        ("a.pxd", "cdef int who"),
    ],
)
def test_what_is_no_person_is_not_found(name, text):
    assert not list(findings(name, text))


def main(names):
    counts: Counter[str] = Counter()
    for name in files(*(names or READ)):
        found = list(findings(name, read(name)))
        counts["/".join(name.split("/")[:-1]) or name] += len(found)
        sys.stdout.writelines(f"{finding}\n" for finding in found if names)
    sys.stdout.writelines(f"{count:5}  {folder}\n" for folder, count in sorted(counts.items()))
    sys.stdout.write(f"{counts.total():5}  in all\n")


if __name__ == "__main__":
    main(sys.argv[1:])
