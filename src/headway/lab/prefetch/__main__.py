"""`python -m headway.lab.prefetch [TEXT]`: the table of all cases, or of those whose names contain the text."""

from __future__ import annotations

import argparse
import sys

from headway.lab.prefetch.accuracy import CASES, play_all


def main() -> None:
    """Print what each client passes, in percent of what the server itself admits."""
    parser = argparse.ArgumentParser(prog="python -m headway.lab.prefetch", description=__doc__)
    parser.add_argument(
        "text", nargs="?", default="", help="a part of a case's name: 'fixed', '20/s', '2 clients'"
    )
    text = parser.parse_args().text
    cases = [case for case in CASES if text in str(case)]
    if not cases:
        parser.error(f"no case has {text!r} in its name; one is {str(CASES[0])!r}")
    out = sys.stdout
    out.write(f"{'':52}{'ideal':>8}{'original':>10}{'strict':>10}{'optimistic':>12}\n")
    for scores in play_all(cases):
        case, ideal = scores["strict"].case, scores["strict"].ideal
        figures = [scores[client].percent for client in ("original", "strict", "optimistic")]
        out.write(
            f"{case!s:52}{ideal:>8}{figures[0]:>9.1f}%{figures[1]:>9.1f}%{figures[2]:>11.1f}%"
            f"   {scores['optimistic'].calls} calls\n"
        )
        out.flush()


if __name__ == "__main__":
    main()
