"""Local decisions against any remote server: permits are fetched ahead, in the background.

    prefetcher      `Prefetcher`: the verbs
    line            the waiters
    fetching        runs the user's fetch: in one daemon thread, or as a task of the running loop
    input           what a user gives (options, answers), checked
    results         what a user gets: `Admission`, `PrefetcherStats`
    fallback        what decides while fetching fails
    lifecycle       forks, the end of the process, and the blocks of `headway.testing`

The algorithm is below, in `headway.core.predictor` and `headway.core.prefetch`, without a clock or a lock.
"""

from headway.prefetch.lifecycle import bring_back, set_aside, set_disabled
from headway.prefetch.prefetcher import Prefetcher
from headway.prefetch.results import Admission, PrefetcherStats

__all__ = ["Admission", "Prefetcher", "PrefetcherStats", "bring_back", "set_aside", "set_disabled"]
