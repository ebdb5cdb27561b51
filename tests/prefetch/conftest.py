"""Servers and clocks for prefetchers."""

import threading

import pytest

from headway.testing import ManualClock


class Server:
    """A server that grants what is left in its window, as a sync fetch; it can be told to fail, hang or answer late."""

    def __init__(self, limit=1000, expires_in=60.0):
        self.left = limit
        self.expires_in = expires_in
        self.asked = []
        self.error = None
        self.running = 0
        self.at_once = 0
        self.gate = threading.Event()
        self.gate.set()

    def fetch(self, amount):
        self.asked.append(amount)
        self.running += 1
        self.at_once = max(self.at_once, self.running)
        try:
            self.gate.wait(30)
            if self.error is not None:
                raise self.error
            granted = min(amount, self.left)
            self.left -= granted
            return granted, self.expires_in
        finally:
            self.running -= 1


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def clock():
    return ManualClock()
