"""How close prefetching comes to a limit, in virtual time: the original's own tests, with other clients beside it.

    servers     a fixed-window and a refilling server, as the original was tested with
    clients     headway's ledger (strict and optimistic), the original's algorithm, and one that asks for each request
    accuracy    the traffic, the cases, and what each client passes
    worlds      lost, late and repeated answers, failures and slow clocks, drawn from a seed

`python -m headway.lab.prefetch` prints the table.

>>> from headway.lab.prefetch import CASES, play
>>> score = play(CASES[0], "strict")
>>> score.passed, score.ideal
(10950, 11000)
"""

from __future__ import annotations

from headway.lab.prefetch.accuracy import CASES, CLIENTS, Case, Score, play, play_all
from headway.lab.prefetch.servers import FixedWindowServer, RefillingServer

__all__ = [
    "CASES",
    "CLIENTS",
    "Case",
    "FixedWindowServer",
    "RefillingServer",
    "Score",
    "play",
    "play_all",
]
