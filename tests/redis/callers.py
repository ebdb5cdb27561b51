# mypy: disable-error-code="var-annotated"
"""Threads that call something, and what came of it."""

import threading

from waiting import NEVER

NOWHERE = "redis://127.0.0.1:1"
"""The URI of an engine that is never there."""


def outcome_of(call, *args, **options):
    try:
        return call(*args, **options)
    except Exception as error:  # noqa: BLE001 - it is looked at
        return error


class Callers:
    """Threads that call something, and what came of it."""

    def __init__(self, *calls):
        self.outcomes = []
        self.threads = [threading.Thread(target=self._call, args=(call,), daemon=True) for call in calls]
        for thread in self.threads:
            thread.start()

    def _call(self, call):
        self.outcomes.append(outcome_of(call))

    def join(self):
        for thread in self.threads:
            thread.join(NEVER)
        return self.outcomes
