"""Every algorithm of headway, once, as a pure state machine.

No clock, no lock, no I/O, no randomness, no logging: time is an argument, and what happens is data. A *rule* is
a limit turned into integers; a *ledger* is what one rule remembers about one key. Every ledger answers the same
few questions (`headway.core.ledger`), so engines, flows and front ends never ask which kind they hold.
"""
