"""How long a test waits. A machine may be busy with other things, so no bound says how fast it is.

`NEVER` bounds everything that happens at all: it is only waited for in a test that fails. `SOON` bounds what happens at
once or in its own time; what would happen instead, if the code were wrong, takes much longer (a test that has no such
alternative makes one: a long lease, a long time-out, a slow rate). What must *not* happen is watched for a short time.
"""

import time

NEVER = 40.0
SOON = 20.0


def wait_until(holds, what, *, within=NEVER, every=0.02):
    """Wait until `holds()`; returns the seconds that it took."""
    begin = time.monotonic()
    while not holds():
        if time.monotonic() - begin > within:
            raise TimeoutError(f"{what}: not within {within} s")
        time.sleep(every)
    return time.monotonic() - begin
