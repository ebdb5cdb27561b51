"""The suite is whole: every public verb and option of `Limiter`, and every verb of `Permit`, is in a test of it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from pathlib import Path

from headway import Limiter, Permit

HERE = Path(__file__).parent
FIXTURES = {"make", "anew", "hasty", "unchanged", "remote"}
"""A test that takes one of these runs on every engine."""

EXCEPTIONS = {
    "Limiter.request": "not public (issue 11, 7)",
    "Limiter.permit_for": "not public (issue 11, 7)",
    "Permit.promise": "not public (issue 11, 7)",
    "Permit.hand_back": "not public (issue 11, 7)",
    "Permit.finish": "not public (issue 11, 7)",
    "option engine": "every limiter of the suite is given one",
    "option clock": "virtual time is for memory:// only, and tests/limiter is about it",
    "option prefetch": "memory:// has nothing to borrow from; tests/redis/test_prefetch.py is about every verb of it",
    "option engine_timeout": "every limiter of the suite is given one; tests/redis is about engines that do not answer",
}


def public(kind: type, known: Iterable[str] = ()) -> set[str]:
    """The public names of a class, and the protocols that it speaks."""
    protocols = {"__enter__", "__aenter__", "__call__"}
    names = {name for name in dir(kind) if not name.startswith("_")}
    return names | {name for name in protocols if name in dir(kind) and name not in dir(object)} - set(known)


def functions() -> Iterable[ast.FunctionDef]:
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            if FIXTURES & {argument.arg for argument in node.args.args}:
                yield node


def used() -> set[str]:
    """Attributes, options and kinds of block in all tests that run on every engine."""
    found: set[str] = set()
    for test in functions():
        twins = "call" in {argument.arg for argument in test.args.args}
        for node in ast.walk(test):
            if isinstance(node, ast.Attribute):
                found |= {node.attr, f"{node.attr}_async"} if twins else {node.attr}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)  # an option in a mapping, an end in a list
            elif isinstance(node, ast.keyword) and node.arg:
                found.add(node.arg)
            elif isinstance(node, ast.AsyncWith):
                found.add("__aenter__")
            elif isinstance(node, ast.With):
                found.add("__enter__")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.decorator_list:
                found |= {"__call__" for one in node.decorator_list if isinstance(one, ast.Name)}
    return found


def wanted() -> dict[str, str]:
    """What must be used, and how it is called in a complaint."""
    options = inspect.signature(Limiter.__init__).parameters.values()
    names = {f"option {option.name}": option.name for option in options if option.kind is option.KEYWORD_ONLY}
    for kind in (Limiter, Permit):
        names |= {f"{kind.__name__}.{name}": name for name in public(kind)}
    return names


def missing(names: dict[str, str]) -> set[str]:
    found = used()
    return {title for title, name in names.items() if name not in found}


def test_every_verb_and_option_is_in_a_test():
    left = missing(wanted()) - set(EXCEPTIONS)
    assert not left, f"no test of tests/engines uses {sorted(left)}: add one, or an exception with its reason"


def test_a_new_verb_would_be_missed():
    class More(Limiter):
        def conjure(self): ...

    assert missing({f"More.{name}": name for name in public(More)}) >= {"More.conjure"}
    assert "Limiter.acquire_async" in wanted()
    assert {"option overrides", "option max_waiting"} <= set(wanted())


def test_an_exception_that_is_none_any_more_goes():
    gone = {title for title in EXCEPTIONS if title not in wanted()}
    # Names that cease to be public leave the table with them.
    assert gone <= {title for title, reason in EXCEPTIONS.items() if reason.startswith("not public")}
