"""Lint of the Lua files: each parses by itself, and a script that is put together from them has no unknown name.

A server parses them (`loadstring`), so that no other tool is needed; luacheck looks at them too where it is installed.
"""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

import headway.engines.redis.script
from headway.engines.redis.script.scripts import (
    BUCKET,
    CONCURRENCY,
    FIXED_WINDOW,
    SPACING,
    WINDOW,
    ledger_script,
    part,
)

FOLDER = Path(headway.engines.redis.script.__file__).parent / "lua"
FILES = [*sorted(FOLDER.glob("*.lua")), Path(__file__).with_name("driver.lua")]
ALONE = ("dump", "once", "reconfigure", "reset")
KINDS = (BUCKET, WINDOW, SPACING, FIXED_WINDOW, CONCURRENCY)
PARSE = "local chunk, problem = loadstring(ARGV[1], '=script') return problem or 'parsed'"
LONGEST_LINE = 120

KEYWORDS = re.compile(
    "and|break|do|else|elseif|end|false|for|function|if|in|local|nil|not|or|repeat|return|then|true|until|while"
).fullmatch
GLOBALS = {
    "KEYS", "ARGV", "redis", "struct", "math", "string", "table", "error", "ipairs", "pairs", "pcall", "select",
    "tonumber", "type", "unpack",
}  # fmt: skip
TOKEN = re.compile(
    r"--\[\[.*?\]\]|--[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|[A-Za-z_]\w*|\d[\w.]*|\.\.\.?|\S",
    re.DOTALL,
)


@cache
def scripts():
    """The scripts of limiters of each kind, and of one of all kinds, with and without queue and leases; by name."""
    found = {
        f"kinds {kinds}, {'a' if queue else 'no'} queue, {'' if leases else 'no'} leases": ledger_script(
            frozenset(kinds), queue, leases
        ).text.decode()
        for kinds in (*((kind,) for kind in KINDS), KINDS)
        for queue, leases in ((False, False), (True, False), (True, True))
    }
    return found | {name: part(name) for name in ALONE}


def unknown_names(text):
    """The names that are used as variables and that no `local`, loop or parameter declares before."""
    tokens = [token for token in TOKEN.findall(text) if not token.startswith("--")]
    known, unknown = set(GLOBALS), set()
    declares = False
    for at, token in enumerate(tokens):
        before, after = tokens[at - 1] if at else "", tokens[at + 1] if at + 1 < len(tokens) else ""
        if token in ("local", "for", "function"):
            declares = True
        elif declares and (token in ("=", "in", ")") or (KEYWORDS(token) and token != "function")):
            declares = False
        if not re.match(r"[A-Za-z_]", token) or KEYWORDS(token):
            continue
        if declares and before in ("local", "for", "function", ",", "("):
            # `function kind.wait(ledger)` declares its parameters, and uses `kind`.
            if before == "function" and after in (".", ":"):
                unknown |= {token} - known
            else:
                known.add(token)
            # One name without a value: the next line is not a list of names.
            declares = after in (",", "(", "=", "in", ")", ".", ":") or before == "function"
        elif before in (".", ":") or (after == "=" and before in ("{", ",")):
            continue
        elif token not in known:
            unknown.add(token)
    return unknown


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_file_parses_by_itself(server, file) -> None:
    assert server.client().eval(PARSE, 0, file.read_text()) == b"parsed"


def test_a_fragment_is_refused(valkey) -> None:
    assert b"'end' expected" in valkey.client().eval(PARSE, 0, "local function general()\n")


def test_each_script_knows_the_names_it_uses() -> None:
    found = {name: unknown_names(text) for name, text in scripts().items()}
    assert not {name: names for name, names in found.items() if names}


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("local a, b = 1 return a + b + c", {"c"}),
        ("local t = {x = 1, y = z}", {"z"}),
        ("for i, v in ipairs(t) do return i, v.w end", {"t"}),
        ("local function f(a, b) return a(b) end f(g)", {"g"}),
        ("function kind.wait(ledger) return ledger.tat end", {"kind"}),
        ("local a\nb = 1", {"b"}),
        ("-- c\nlocal a = 'c' return a", set()),
        ("return x; local x", {"x"}),
    ],
)
def test_the_lint_finds_unknown_names(text, unknown) -> None:
    assert unknown_names(text) == unknown


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_lines_are_neat(file) -> None:
    for number, line in enumerate(file.read_text().splitlines(), 1):
        assert line == line.rstrip(), f"{file.name}:{number}: blanks at its end"
        assert "\t" not in line, f"{file.name}:{number}: a tab"
        assert len(line) <= LONGEST_LINE, f"{file.name}:{number}: {len(line)} characters"


@pytest.mark.skipif(shutil.which("luacheck") is None, reason="needs luacheck: apt-get install lua-check")
def test_luacheck_has_nothing_to_say(tmp_path) -> None:
    """Of the script with everything in it also what is unused; of the others what is unknown, which is an error."""
    names = scripts()
    for index, text in enumerate(names.values()):
        (tmp_path / f"{index}.lua").write_text(text)
    own = [
        "--std",
        "lua51",
        "--read-globals",
        "KEYS",
        "ARGV",
        "redis",
        "struct",
        "--no-max-line-length",
        "--no-color",
    ]
    # Parameters that only some kinds need, names that an inner function has again, and a branch that does nothing.
    whole = ["--no-unused-args", "--ignore", "4", "542"]
    fullest = max(range(len(names)), key=lambda index: len(list(names.values())[index]))
    for options, files in (
        (whole, [tmp_path / f"{fullest}.lua"]),
        (["--only", "0", "1"], sorted(tmp_path.glob("*.lua"))),
    ):
        done = subprocess.run(
            ["luacheck", *map(str, files), *own, *options], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


def test_a_server_takes_each_script(server) -> None:
    """A function has no more than 200 locals and 60 names from outside."""
    for text in scripts().values():
        server.client().script_load(text)
