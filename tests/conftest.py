"""Shared by all tests: what a skip means, and what runs in both forms."""

import gc
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How fast an example is made or runs says nothing of the code on a machine that is busy.
settings.register_profile("headway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headway")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets its background jobs ignore Ctrl-C, and what they start inherits that; some tests press it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
REQUIRE_ALL = os.environ.get("HEADWAY_REQUIRE_ALL", "0") not in ("", "0")


def find_program(name):
    """The program's path: beside this Python or on PATH, or None."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return shutil.which(name, path=os.pathsep.join(places))


def needs_program(name, *, install):
    """Mark a test or module that runs an outside program; the skip says how to get it.

    pytestmark = needs_program("redis-server", install="apt-get install redis-server")
    """
    return pytest.mark.skipif(find_program(name) is None, reason=f"needs {name}: {install}")


def pytest_ignore_collect(collection_path, config):
    """A file that does not name the marker has no test of both forms, and need not even be imported for them."""
    path = collection_path
    if config.option.markexpr == "both_forms" and path.suffix == ".py" and TESTS / "core" not in path.parents:
        return True if "both_forms" not in path.read_text() else None
    return None


ONE_FORM = {"test_forms.py", "test_limits.py", "test_notation.py", "test_script_traces.py"}
"""Of the core: what compares the forms by itself, or is about code that is not compiled."""


def pytest_collection_modifyitems(items):
    for item in items:
        if TESTS / "core" in item.path.parents and item.path.name not in ONE_FORM:
            item.add_marker(pytest.mark.both_forms)
    # A compiled wheel takes minutes: begun last, every other worker would wait for it.
    items.sort(key=lambda item: item.path.name != "test_build.py")


def _skip_is_failure(report):
    """With HEADWAY_REQUIRE_ALL=1 nothing may be missing, so a skip (not an expected failure) fails."""
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"HEADWAY_REQUIRE_ALL is set, and this was skipped. {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return _skip_is_failure((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return _skip_is_failure((yield))


def open_engines():
    """Which shared engines this process has opened by their address."""
    return {
        (package, address)
        for package in ("headway.engines.http", "headway.engines.redis")
        for address in getattr(sys.modules.get(package), "opened", ())
    }


def close_engines(kept):
    """Close those that have been opened since."""
    for package, address in sorted(open_engines() - kept):  # those that speak to another one first
        sys.modules[package].opened.close(address)


@pytest.fixture(autouse=True)
def _engines_end():
    """What a test opened ends with it: threads that look for a server which is gone would disturb the others."""
    before = open_engines()
    yield
    close_engines(before)


def pytest_collection_finish():
    """All that is there now stays. The collector need not look at it again, which takes it a quarter of a second; and
    many tests call it."""
    gc.collect()
    gc.freeze()
