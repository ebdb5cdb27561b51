"""What a server does now, for those that watch: `GET /v1/live`.

    messages    a state, and a change of it, as types
    limits      what is counted of limits, and how their ledgers stand
    gates       what is pending at gates, and what became of events
    sampler     takes a sample for all watchers, and encodes it once
    stream      the call: one state as JSON, or server-sent events

One sampler serves every watcher. While there is none it only reads counters, every 2 s, so that the last minutes are
there when a page is opened; ledgers and gates are looked at only while they are watched.
"""

from headway.service.live.sampler import Sampler
from headway.service.live.stream import LIVE_CALLS, live_routes

__all__ = ["LIVE_CALLS", "Sampler", "live_routes"]
