"""Shared by all tests: what a skip means, and what runs in both forms."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

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


def pytest_collection_modifyitems(items):
    for item in items:
        if TESTS / "core" in item.path.parents:
            item.add_marker(pytest.mark.both_forms)


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


@pytest.fixture(autouse=True)
def _engines_end():
    """What a test opened ends with it: threads that look for a server which is gone would disturb the others."""
    engines = sys.modules.get("headway.engines.redis")
    before = set() if engines is None else set(engines._engines)
    yield
    engines = sys.modules.get("headway.engines.redis")
    if engines is not None:
        for address in set(engines._engines) - before:
            engines._engines.pop(address).close()
