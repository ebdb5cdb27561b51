"""The demo on the screen: two panels that are kept up to date, or plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headway.cli.words import count, span
from headway.lab.demo.score import Score

if TYPE_CHECKING:
    from headway import Window
    from headway.lab.demo.crowd import Crowd

BARS = " ▁▂▃▄▅▆▇█"
ASCII_BARS = " .:-=+*%#"
NARROW = 76
WIDE = 100


@dataclass(frozen=True, slots=True)
class Screen:
    """The two crowds, headway's first, on a console."""

    console: Console
    crowds: Sequence[Crowd]
    limit: Window
    seconds: float

    @contextmanager
    def live(self) -> Iterator[Callable[[], None]]:
        """Yields a function that draws the crowds: in place on a terminal, as lines elsewhere."""
        if not self.console.is_terminal or self.console.is_dumb_terminal:
            yield Lines(self)
            self.console.print("", self._table(), sep="\n")
            return
        with Live(self._panels(), console=self.console, auto_refresh=False) as live:
            yield lambda: live.update(self._panels(), refresh=True)
            live.update(self._panels(), refresh=True)

    def scores(self) -> list[Score]:
        return [Score(crowd, self.limit) for crowd in self.crowds]

    # -- on a terminal -----------------------------------------------------------------------------------

    def _panels(self) -> RenderableType:
        side_by_side = self.console.width >= NARROW
        # Room on the right for the ^C that a terminal echoes: a line that wraps would break the picture.
        width = min(self.console.width - 4, WIDE) // (2 if side_by_side else 1)
        panels = [self._panel(crowd, width) for crowd in self.crowds]
        if not side_by_side:
            return Group(*panels)
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_row(*panels)
        return grid

    def _panel(self, crowd: Crowd, width: int) -> Panel:
        score = Score(crowd, self.limit)
        inner = width - 4
        return Panel(
            Group(self._window(score, inner), self._figures(score), self._strip(crowd, inner)),
            title=f"[bold]{score.name}[/]",
            subtitle=f"[dim]{min(score.elapsed, self.seconds):.1f} of {self.seconds:g} s[/]",
            subtitle_align="right",
            border_style="red" if score.refused else "green",
            width=width,
        )

    def _window(self, score: Score, width: int) -> Text:
        """How full the API's window is, by the API's own count."""
        used, most = score.report.in_window, self.limit.count
        label = f" {used:>{len(str(most))}} of {most} in {span(self.limit.per_ns)}"
        room = max(4, width - len(label))
        full = round(room * min(1.0, used / most))
        filled, empty = ("#", ".") if self._ascii else ("█", "░")
        return Text.assemble((filled * full, "cyan"), (empty * (room - full), "dim"), label)

    def _figures(self, score: Score) -> Table:
        color = "bold red" if score.refused else "bold green"
        rows = Table.grid(padding=(0, 1), expand=True)
        rows.add_column(style="dim")
        rows.add_column(justify="right")
        rows.add_row("answered", f"{score.answered}")
        rows.add_row("rate", f"{score.rate:.1f}/s")
        rows.add_row("wait p50, p99", f"{score.wait_p50:.2f} s, {score.wait_p99:.2f} s")
        rows.add_row("waiting, in flight", f"{score.waiting}, {score.in_flight}")
        rows.add_row(f"most in any {span(self.limit.per_ns)}", f"[{color}]{score.report.most_in_window}[/]")
        rows.add_row("violations", f"[{color}]{score.report.violations}[/]")
        rows.add_row("refused (429)", f"[{color}]{score.refused}[/]")
        return rows

    def _strip(self, crowd: Crowd, width: int) -> Text:
        """The whole run from left to right: how many answers came, red where some were refusals."""
        answers, refusals = [0] * width, [0] * width
        for visit in crowd.visits:
            cell = min(width - 1, int(visit.done / self.seconds * width))
            answers[cell] += 1
            refusals[cell] += visit.refused
        bars = ASCII_BARS if self._ascii else BARS
        strip = Text()
        strip.append("answers, red where refused\n", "dim")
        for total, refused in zip(answers, refusals, strict=True):
            # Half the limit in one cell is a full bar: the height is for the eye, the numbers are above.
            height = min(8, -(-16 * total // self.limit.count))
            strip.append(bars[height], "red" if refused else "green")
        return strip

    @property
    def _ascii(self) -> bool:
        return not self.console.encoding.startswith("utf")

    # -- at the end --------------------------------------------------------------------------------------

    def _table(self) -> Table:
        """All figures, where there was no live view."""
        scores = self.scores()
        table = Table("", *(score.name for score in scores))
        for column in table.columns[1:]:
            column.justify = "right"
        figures: tuple[tuple[str, Callable[[Score], str]], ...] = (
            ("answered", lambda score: f"{score.answered}"),
            ("rate", lambda score: f"{score.rate:.1f}/s"),
            ("wait p50", lambda score: f"{score.wait_p50:.2f} s"),
            ("wait p99", lambda score: f"{score.wait_p99:.2f} s"),
            ("latency, mean", lambda score: f"{score.latency * 1e3:.0f} ms"),
            (f"most in any {span(self.limit.per_ns)}", lambda score: f"{score.report.most_in_window}"),
            ("violations", lambda score: f"{score.report.violations}"),
            ("refused (429)", lambda score: f"{score.refused}"),
        )
        for label, figure in figures:
            table.add_row(label, *(figure(score) for score in scores))
        return table

    def summary(self) -> Table:
        """The result in a few lines."""
        ours, plain = self.scores()
        per = span(self.limit.per_ns)
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_row(
            ours.name,
            f"{_violations(ours)}: never more than {ours.report.most_in_window} in any {per}\n"
            f"{ours.rate:.1f}/s, [bold]{100 * ours.use:.1f} %[/] of the provable ceiling of {ours.ceiling:.1f}/s:\n"
            f"[dim]{self.limit.count} / ({ours.gap:.5g} s gap + {ours.latency:.2g} s latency)[/]\n"
            f"[dim](a call whose permit still rests at the end counts in part)[/]\n"
            f"waits: half below {ours.wait_p50:.2f} s, 99 % below {ours.wait_p99:.2f} s",
        )
        table.add_row(
            plain.name,
            f"{_violations(plain)}: up to {plain.report.most_in_window} in {per}; "
            f"{count(plain.refused, 'call')} refused",
        )
        return table


class Lines:
    """The live view for a file: about a dozen lines."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._every = max(0.5, screen.seconds / 12)
        self._next = self._every
        self._print("         ", *(f"{crowd.name:<30}" for crowd in screen.crowds))

    def __call__(self) -> None:
        elapsed = min(crowd.elapsed for crowd in self._screen.crowds)
        if elapsed >= self._next:
            self._next += self._every
            figures = (
                f"{score.answered:>5} answered {score.refused:>5} refused   "
                for score in self._screen.scores()
            )
            self._print(f"{elapsed:6.1f} s ", *figures)

    def _print(self, *cells: str) -> None:
        self._screen.console.print("".join(cells).rstrip(), soft_wrap=True)


def _violations(score: Score) -> str:
    number = score.report.violations
    return f"[{'red' if number else 'green'}]{count(number, 'violation')}[/]"
