"""A counter-example as something to look at: what happens when in true time, and what each clock shows then."""

from __future__ import annotations

import sys
from fractions import Fraction

EVENTS = {"a": "the remote notes the first event", "c": "we hear of it", "g": "its permit was granted",
       "d": "the next permit is dispatched", "b": "the remote notes the second event"}  # fmt: skip


def show(found: dict[str, Fraction], title: str) -> None:
    """Print it: `pytest -s tests/proof` shows all of them."""
    sys.stdout.write(f"\n{timeline(found, title)}\n")


def timeline(found: dict[str, Fraction], title: str) -> str:
    """Lines in the order of true time.

    >>> print(timeline({"a": Fraction(0), "remote_a": Fraction(1, 2), "b": Fraction(1), "w": Fraction(1)}, "two"))
    two
      w=1
       true       their clock our clock
       0          0.5                   the remote notes the first event
       1                                the remote notes the second event
    """
    names = [name for name in ("w", "rr", "re", "lr", "le", "out", "back", "max_transit") if name in found]
    lines = [title, "  " + " ".join(f"{name}={_short(found[name])}" for name in names)]
    lines.append(f"   {'true':10} {'their clock':11} {'our clock':9}")
    for name in sorted((name for name in EVENTS if name in found), key=lambda name: found[name]):
        theirs, ours = found.get(f"remote_{name}"), found.get(f"local_{name}")
        shown = ["" if reading is None else _short(reading) for reading in (theirs, ours)]
        lines.append(f"   {_short(found[name]):10} {shown[0]:11} {shown[1]:9} {EVENTS[name]}")
    if "remote_a" in found and "remote_b" in found:
        apart = found["remote_b"] - found["remote_a"]
        lines.append(f"   so their clock saw them {_short(apart)} apart, within w = {_short(found['w'])}")
    return "\n".join(lines)


def _short(number: Fraction) -> str:
    return f"{float(number):.6g}"
