"""The window lab: an adversary for `Window` limits that count as the remote does.

The promise "never more than n in any window, as the remote measures it" is proved for a model (`docs/proof.md`). The
lab attacks the code that is supposed to keep it: it draws a *world* (clocks as wrong as they may be, latencies, faults)
from a seed, runs workers in it through a real `Limiter` in virtual time, and audits every window that the remote could
look at. The same seed always gives the same world.

    worlds      what is drawn                      simulate    one world, run on a heap of moments
    clocks      coarse, drifting clocks, exactly   tasks       the same with asyncio tasks, cancelled at any await
    fates       what goes wrong with a request     mutants     limiters with a fault, which the lab must find
    audit       every window, wherever it starts   story       a failing seed, reduced and explained
    peers       other libraries in the same world  plot        what the remote saw, as SVG

>>> outcome = run_world(draw(seed=1, events=200))
>>> outcome.verdict.violations
0
"""

from __future__ import annotations

from headway.lab.audit import Outcome, Verdict, audit
from headway.lab.simulate import run_world
from headway.lab.story import shrink, tell
from headway.lab.worlds import World, draw

__all__ = ["Outcome", "Verdict", "World", "audit", "draw", "run_world", "shrink", "tell"]
