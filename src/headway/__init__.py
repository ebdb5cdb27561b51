"""headway: rate limiting that can be proved.

>>> from headway import Limiter
>>> limiter = Limiter("100/minute")
>>> with limiter:
...     pass  # at most 100 of these in any minute

The layout, from the bottom: `core` holds every algorithm as a pure state machine, `engines` keep their ledgers,
`flows` say what waiting means and `drive` does it for threads and for tasks; `limiter`, `throttle`, `pacer`,
`prefetch` and `once` are what you call. `testing` has clocks that you can turn.
"""

from headway import _pure  # noqa: F401 - first of all: it decides which form of the others is loaded
from headway._version import __version__
from headway.calibrate import calibrate
from headway.clock import Clock, SystemClock, compiled
from headway.core.adaptive_limit import Adaptive
from headway.core.limits import AllOf, Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.core.notation import parse_limit
from headway.core.once import EventStatus
from headway.core.remote import Remote
from headway.denied import Denied
from headway.engines import Engine, redis_engine
from headway.errors import (
    AcquireTimeout,
    ChangesGone,
    EngineUnavailable,
    EventRepeated,
    GateClosed,
    GateFull,
    HeadwayError,
    IdReused,
    InvalidArgument,
    InvalidKey,
    InvalidLimit,
    InvalidUse,
    LimiterClosed,
    LimitMismatch,
    NotPromised,
    PermitExpired,
    PermitFinished,
    RateLimited,
    UnsupportedAsync,
)
from headway.events import LimiterEvent
from headway.limiter.adaptive_concurrency import AdaptiveConcurrency
from headway.limiter.limiter import Limiter
from headway.limiter.permits import Permit
from headway.limiter.prefetch_options import Prefetch
from headway.once import Change, Once, Snapshot, Submission
from headway.pacer.pacer import Pacer
from headway.prefetch import Admission, Prefetcher, PrefetcherStats
from headway.status import LeaseStatus, LimiterStats, Status
from headway.throttle.decorator import limiter_of, throttle

__all__ = [
    "AcquireTimeout",
    "Adaptive",
    "AdaptiveConcurrency",
    "Admission",
    "AllOf",
    "Bucket",
    "Change",
    "ChangesGone",
    "Clock",
    "Concurrency",
    "Denied",
    "Engine",
    "EngineUnavailable",
    "EventRepeated",
    "EventStatus",
    "FixedWindow",
    "GateClosed",
    "GateFull",
    "HeadwayError",
    "IdReused",
    "InvalidArgument",
    "InvalidKey",
    "InvalidLimit",
    "InvalidUse",
    "LeaseStatus",
    "Limit",
    "LimitMismatch",
    "Limiter",
    "LimiterClosed",
    "LimiterEvent",
    "LimiterStats",
    "NotPromised",
    "Once",
    "Pacer",
    "Permit",
    "PermitExpired",
    "PermitFinished",
    "Prefetch",
    "Prefetcher",
    "PrefetcherStats",
    "RateLimited",
    "Remote",
    "Snapshot",
    "Spacing",
    "Status",
    "Submission",
    "SystemClock",
    "UnsupportedAsync",
    "Window",
    "__version__",
    "calibrate",
    "compiled",
    "limiter_of",
    "parse_limit",
    "redis_engine",
    "throttle",
]


def __dir__() -> list[str]:
    """The public names, without the modules that they come from."""
    return sorted(__all__)
