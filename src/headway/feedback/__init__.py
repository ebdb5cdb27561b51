"""What a server says of its limits: `read` turns an answer into a `Feedback`, or into nothing.

>>> import time
>>> from headway import feedback
>>> feedback.read(429, {"Retry-After": "2"}, now=time.time()).wait
2.0

It is pure and never raises for what a server sent. `profile_of(host)` names the vendors that need more than headers.
"""

from headway.feedback.profiles import PROFILES as _PROFILES
from headway.feedback.profiles import profile_of
from headway.feedback.reading import MAX_WAIT, Feedback, read
from headway.feedback.stated import StatedLimit

__all__ = ["MAX_WAIT", "Feedback", "StatedLimit", "profile_of", "profiles", "read"]


def profiles() -> tuple[str, ...]:
    """The names of all profiles.

    >>> "github" in profiles()
    True
    """
    return tuple(_PROFILES)
