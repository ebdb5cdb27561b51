"""Imports point down the layers of ARCHITECTURE.md, wherever in a file they stand."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "headway"

# From the bottom to the top. A module may import its own layer and those before it.
LAYERS = (
    {
        "errors",
        "clock",
        "counts",
        "forks",
        "interrupts",
        "outcome",
        "printable",
        "_cython",
        "_pure",
        "_version",
    },
    {"core"},
    {"diagnostics", "feedback"},
    {"engines"},
    {"flows"},
    {"status", "denied", "calibrate", "limit_headers"},
    {"events", "limiter", "throttle", "pacer", "prefetch", "once", "stomp"},
    {"headway"},  # the package itself: what `from headway import Limiter` reads
    {"integrations", "service"},
    {"testing", "lab", "cli"},
)
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}

# Engines that front ends reach by their URI alone. `memory` is none: the compiled fast path needs its C types.
SHARED_ENGINES = ("headway.engines.redis", "headway.engines.http")

# core is pure: time comes as an argument, and there is nothing to wait for, to draw or to tell.
IMPURE = {"time", "threading", "asyncio", "random", "logging", "socket", "os", "_thread", "secrets"}


def part_of(module):
    """The part of the package that a module belongs to: headway.core.bucket is in core."""
    names = module.split(".")
    return names[1] if len(names) > 1 else names[0]


def imports(tree, module, is_package, modules):
    """Yield (line, absolute module name) for every import in a syntax tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: (1 if is_package else 0) - node.level or None]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if inner in modules else base


def fault(module, target):
    """Why `module` must not import `target`, or None."""
    here, top = part_of(module), target.partition(".")[0]
    if top == "headway":
        there = part_of(target)
        if there not in HEIGHT:
            return f"{there!r} has no layer"
        if HEIGHT[there] > HEIGHT[here]:
            return f"{there!r} is above {here!r}"
        if here == "core" and there not in ("core", "errors"):
            return "core imports only errors and itself"
        if target.startswith(SHARED_ENGINES) and not module.startswith(SHARED_ENGINES):
            return "an engine is known only through engines/base.py; engines/uri.py opens it by name"
    elif here == "core" and (top not in sys.stdlib_module_names or top in IMPURE):
        return "core is pure: no clock, lock, I/O, randomness, logging or third party"
    return None


def faults(package):
    """Every wrong import below a package folder, as lines to read."""
    files = {}
    for file in sorted(package.rglob("*.py")):
        names = ("headway", *file.relative_to(package).with_suffix("").parts)
        files[".".join(names[:-1] if names[-1] == "__init__" else names)] = file
    for module, file in files.items():
        where = f"headway/{file.relative_to(package).as_posix()}"
        if part_of(module) not in HEIGHT:
            yield f"{where}: {part_of(module)!r} has no layer: give it one in tests/test_layers.py"
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for line, target in imports(tree, module, file.name == "__init__.py", files):
            if why := fault(module, target):
                yield f"{where}:{line}: imports {target}: {why}"


def test_imports_point_down():
    found = list(faults(PACKAGE))
    assert not found, "wrong imports:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("core/bucket.py", "from headway.engines import memory", "'engines' is above 'core'"),
        ("core/bucket.py", "from ..limiter import Limiter", "'limiter' is above 'core'"),
        ("core/bucket.py", "from headway import clock", "core imports only errors and itself"),
        ("core/bucket.py", "from headway import Limiter", "'headway' is above 'core'"),
        ("core/bucket.py", "def late():\n    import time", "core is pure"),
        ("core/bucket.py", "import redis", "core is pure"),
        ("core/__init__.py", "from ..flows import drive", "'flows' is above 'core'"),
        ("flows/local.py", "import headway.limiter", "'limiter' is above 'flows'"),
        ("limiter/shared.py", "from headway.engines.redis import Engine", "only through engines/base.py"),
        (
            "cli/top.py",
            "def late():\n    from headway.engines.redis import scanner",
            "only through engines/base.py",
        ),
        ("engines/uri.py", "import headway.engines.redis", "only through engines/base.py"),
        ("helpers.py", "", "'helpers' has no layer"),
    ],
)
def test_planted_violation_is_found(tmp_path, file, line, message):
    for name in ("clock.py", "limiter.py", "flows/drive.py", "engines/memory.py", "core/bucket.py", file):
        tmp_path.joinpath(name).parent.mkdir(exist_ok=True)
        tmp_path.joinpath(name).touch()
    tmp_path.joinpath(file).write_text(line)
    (found,) = faults(tmp_path)
    assert found.startswith(f"headway/{file}:")
    assert message in found


def test_downward_imports_are_fine(tmp_path):
    tmp_path.joinpath("core").mkdir()
    tmp_path.joinpath("core/wait_queue.py").touch()
    tmp_path.joinpath("core/bucket.py").write_text(
        "import math\nfrom . import wait_queue\nfrom ..errors import LimiterClosed\n"
    )
    tmp_path.joinpath("errors.py").touch()
    tmp_path.joinpath("cli.py").write_text("from headway import Limiter\nimport time\n")
    assert list(faults(tmp_path)) == []
