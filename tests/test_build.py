"""The build list is complete, and both wheels work where there is neither Cython nor anything else."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from setuptools import Distribution  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent
SETUP = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
MODULES = SETUP["compiled_modules"](ROOT / "src")
CONSOLE = ROOT / "src" / "headway" / "service" / "console"
PAGE = (".html", ".css", ".js", ".svg")

# Prints the form that runs; the limit is used so that the compiled modules are really entered. What belongs to an extra
# cannot be imported here, and says what to install.
USE = """
import headway, importlib.metadata, sys
assert headway.Limiter("5/s").try_acquire()
assert importlib.metadata.version("headway") == headway.__version__
assert "Cython" not in sys.modules
extra = ('headway.engines.redis.', 'headway.limiter.shared', 'headway.service.')
own = [name for name in sys.argv[1:] if not name.startswith(extra)]
files = {importlib.import_module(name).__file__ for name in own}
try:
    headway.Limiter("5/s", name="shared", engine="redis://127.0.0.1:1")
except headway.HeadwayError as error:
    assert "pip install" in str(error), error
print(*{file.endswith(".py") for file in files})
"""


def command(*words, **environ):
    """Run quietly; on failure show what was said."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HEADWAY_", "PYTHON"))}
    done = subprocess.run(words, env=env | environ, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_every_pxd_and_pyx_is_in_the_build_list_and_nothing_else():
    beside = {pxd.with_suffix(".py") for pxd in ROOT.glob("src/**/*.pxd") if pxd.name != "__init__.pxd"}
    assert set(MODULES.values()) == beside | set(ROOT.glob("src/**/*.pyx"))
    assert [file for file in MODULES.values() if not file.exists()] == [], "a .pxd without its .py"


def test_an_extra_lists_what_is_imported_and_nothing_else():
    """Of the extras for users; those of the Makefile's targets have tools too."""
    extras = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["lab"] == ["headway[cli]"]
    assert "headway[redis]" in extras["embedded"]
    sources = "".join(file.read_text() for file in ROOT.glob("src/headway/**/*.py"))
    for extra in ("redis", "embedded", "cli", "lab"):
        for name in extras[extra]:
            used = re.search(rf"(import|from) {name}\b|find_spec\(.{name}.\)", sources)
            assert name.startswith("headway[") or used, f"{extra}: nothing imports {name}"


def test_packages_with_compiled_modules_have_an_init_pxd():
    folders = {file.parent for file in MODULES.values() if file.suffix == ".py"}
    assert [folder for folder in folders if not (folder / "__init__.pxd").exists()] == [], "cimport needs it"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A clean copy of what is built, so that leftovers of other builds stay out of the wheel."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy)
    leftovers = shutil.ignore_patterns("*.so", "*.pyd", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=leftovers)
    reuse_binaries(copy)
    return copy


def reuse_binaries(copy):
    """Let the build find what was built in place, unless that is older than its source: to compile takes minutes."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    binaries = {name: file.with_suffix(suffix) for name, file in MODULES.items()}
    for name, file in MODULES.items():
        sources = [source for source in (file, file.with_suffix(".pxd")) if source.exists()]
        newest = max(source.stat().st_mtime for source in sources)
        if not binaries[name].exists() or binaries[name].stat().st_mtime < newest:
            return
    if not (ROOT / "build" / "cython").exists():
        return
    shutil.copytree(ROOT / "build" / "cython", copy / "build" / "cython")
    build = Distribution().get_command_obj("build")
    build.ensure_finalized()
    for file in binaries.values():
        built = copy / build.build_platlib / file.relative_to(ROOT / "src")
        built.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, built)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["compiled", "pure"])
def test_wheel_works_in_an_empty_environment(form, source, tmp_path):
    compiled = form == "compiled"
    if compiled and not (MODULES and SETUP["can_compile"]()):
        pytest.skip("needs a C compiler: apt-get install gcc libc6-dev")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    wheel_options = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(tmp_path))
    command(*pip, "wheel", *wheel_options, str(source), HEADWAY_NO_EXT="0" if compiled else "1")
    (wheel,) = tmp_path.glob("*.whl")
    check_contents(wheel, compiled)

    command(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty"))
    python = str(tmp_path / "empty" / ("Scripts" if os.name == "nt" else "bin") / "python")
    command(*pip, "--python", python, "install", "--no-index", "--no-deps", str(wheel))
    assert command(python, "-c", USE, *MODULES) == str(not compiled)
    assert command(python, "-c", USE, *MODULES, HEADWAY_PURE="1") == "True"


def check_contents(wheel, compiled):
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.endswith("-py3-none-any.whl") != compiled
    assert "headway/py.typed" in names
    page = {f"headway/service/console/{file.name}" for file in CONSOLE.iterdir() if file.suffix in PAGE}
    assert len(page) >= 9
    assert page <= set(names), "the console's files are data of the package"
    assert not [name for name in names if name.endswith((".c", ".html")) and name not in page]
    files = [file.relative_to(ROOT / "src") for file in MODULES.values()]
    sources = {file.as_posix() for file in files if file.suffix == ".py"}
    assert sources <= set(names), "the .py is needed for HEADWAY_PURE=1 and for tracebacks"
    binaries = {name.partition(".")[0] for name in names if name.endswith((".so", ".pyd"))}
    assert binaries == ({file.with_suffix("").as_posix() for file in files} if compiled else set())
