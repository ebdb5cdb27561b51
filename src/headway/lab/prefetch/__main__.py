"""`python -m headway.lab.prefetch`: the table of all cases."""

from __future__ import annotations

import sys

from headway.lab.prefetch.accuracy import play_all


def main() -> None:
    """Print what each client passes, in percent of what the server itself admits."""
    out = sys.stdout
    out.write(f"{'':52}{'ideal':>8}{'original':>10}{'strict':>10}{'optimistic':>12}\n")
    for scores in play_all():
        case, ideal = scores["strict"].case, scores["strict"].ideal
        figures = [scores[client].percent for client in ("original", "strict", "optimistic")]
        out.write(
            f"{case!s:52}{ideal:>8}{figures[0]:>9.1f}%{figures[1]:>9.1f}%{figures[2]:>11.1f}%"
            f"   {scores['optimistic'].calls} calls\n"
        )


if __name__ == "__main__":
    main()
