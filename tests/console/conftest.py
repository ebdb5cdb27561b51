"""One browser for the tests of a module: it takes longer to start than a test."""

import pytest
from tests.console.browser import chromium


@pytest.fixture(scope="module")
def browser():
    """Not for the whole session: while it is open there is a running event loop, in which others cannot run theirs."""
    with chromium() as found:
        yield found
