"""Gates of events in virtual time: processes, a server that fails, and a network that delays, loses and repeats.

    server      the gate on its server: the real engine of this process, its clock, its failures, and all that it did
    clients     a process's side: the seam's `Gate` over that network, and what it hears by itself
    town        the processes that submit, and those that follow the gate; what goes wrong, and when
    followers   a copy of the gate, and the judge of what it is given
    audit       the law, and the definition worked out by brute force: what should have happened
    worlds      the numbers of a world, drawn from a seed
    mutants     gates, subscriptions and copies with one line changed each

Everything between the network and the user is the real thing: `Once`, its subscriptions and copies, the core's gate.
`python -m headway.lab.once worlds --count 1000` runs a thousand worlds.
"""

from headway.lab.once.worlds import World, draw, run_world

__all__ = ["World", "draw", "run_world"]
