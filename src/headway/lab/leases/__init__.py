"""Leases in virtual time: clients, a ledger, and a network between them that delays, loses and repeats.

    fleet       the simulation: the real `Holder` and `LeaseLedger`, everything around them simulated
    traffic     what the clients are asked for
    audit       whether the limit was kept, at every moment
    tables      the figures: accuracy, a burst that moves, a large fleet, calls per decision
    trial       a limit and a fleet of one's own, and the original's algorithm with the same requests
    picture     one such trial, drawn
    worlds      seeded worlds in which everything goes wrong
    mutants     leases with one rule broken each

`python -m headway.lab.leases` prints the tables, and `headway lab prefetch` the figures of a trial.
"""

from headway.lab.leases.fleet import Fleet, Network

__all__ = ["Fleet", "Network"]
