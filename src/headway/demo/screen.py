"""What a person looks at: two panels that live, or plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headway.core.durations import duration_text
from headway.demo.score import Score
from headway.errors import seconds_text

if TYPE_CHECKING:
    from headway import Window
    from headway.demo.crowd import Crowd

BARS = " ▁▂▃▄▅▆▇█"
ASCII_BARS = " .:-=+*%#"
NARROW = 72


class Show(Protocol):
    """Called every now and then with the crowds as they are."""

    def __call__(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Screen:
    """The two crowds, headway's first, on a console."""

    console: Console
    crowds: Sequence[Crowd]
    limit: Window
    seconds: float

    @contextmanager
    def live(self) -> Iterator[Show]:
        """Show what happens while the block runs: in place on a terminal, a line a second elsewhere."""
        if not self.console.is_terminal or self.console.is_dumb_terminal:
            yield Lines(self)
            return
        with Live(self._panels(), console=self.console, auto_refresh=False) as live:
            yield lambda: live.update(self._panels(), refresh=True)
            live.update(self._panels(), refresh=True)

    def scores(self) -> list[Score]:
        return [Score(crowd, self.limit) for crowd in self.crowds]

    # -- on a terminal -------------------------------------------------------------------------------------------

    def _panels(self) -> RenderableType:
        side_by_side = self.console.width >= NARROW
        width = min(self.console.width, 110) // (2 if side_by_side else 1) - 6
        panels = [
            Panel(
                Group(self._window(score, width), self._figures(score), Text(), self._strip(crowd, width)),
                title=f"[bold]{score.name}[/]",
                subtitle=f"[dim]{min(score.elapsed, self.seconds):.1f} of {self.seconds:g} s[/]",
                subtitle_align="right",
                border_style="red" if score.refused else "green",
                width=width + 4,
                padding=(0, 1),
            )
            for crowd, score in zip(self.crowds, self.scores(), strict=True)
        ]
        if not side_by_side:
            return Group(*panels)
        grid = Table.grid(padding=(0, 1))
        grid.add_row(*panels)
        return grid

    def _window(self, score: Score, width: int) -> Text:
        """How full the API's window is, by the API's own count."""
        used, most = score.report.in_window, self.limit.count
        label = f" {used:>{len(str(most))}} of {most} in {duration_span(self.limit)}"
        room = max(4, width - len(label))
        full = round(room * min(1.0, used / most))
        filled, empty = ("#", ".") if self._ascii else ("━", "─")
        return Text.assemble((filled * full, "cyan"), (empty * (room - full), "dim"), label)

    def _figures(self, score: Score) -> Table:
        rows = Table.grid(padding=(0, 2), expand=True)
        rows.add_column(style="dim")
        rows.add_column(justify="right")
        refused = "red bold" if score.refused else "green bold"
        rows.add_row("answered", f"{score.answered}   [dim]{score.rate:.1f}/s[/]")
        rows.add_row("refused (429)", f"[{refused}]{score.refused}[/]")
        rows.add_row(f"most in any {duration_span(self.limit)}", f"[{refused}]{score.report.most_in_window}[/]")
        rows.add_row("waiting, in flight", f"{score.waiting}, {score.in_flight}")
        rows.add_row("wait p50, p99", f"{score.wait_p50:.2f} s, {score.wait_p99:.2f} s")
        return rows

    def _strip(self, crowd: Crowd, width: int) -> Text:
        """The whole run from left to right: how many answers came, red where some were refusals."""
        answers, refusals = [0] * width, [0] * width
        for visit in crowd.visits:
            cell = min(width - 1, int(visit.done / self.seconds * width))
            answers[cell] += 1
            refusals[cell] += visit.refused
        bars = ASCII_BARS if self._ascii else BARS
        # Half the limit in one cell is a full bar: the height is for the eye, the numbers are above.
        tall = max(1.0, self.limit.count / 2)
        strip = Text()
        for total, refused in zip(answers, refusals, strict=True):
            height = min(8, -int(-8 * total / tall // 1))
            strip.append(bars[height], "red" if refused else "green")
        return strip

    @property
    def _ascii(self) -> bool:
        return not self.console.encoding.startswith("utf")

    # -- at the end ----------------------------------------------------------------------------------------------

    def table(self) -> Table:
        """All figures, for where there was no live view."""
        table = Table(title=None)
        table.add_column("")
        scores = self.scores()
        for score in scores:
            table.add_column(score.name, justify="right")

        def row(label: str, *cells: str) -> None:
            table.add_row(label, *cells)

        row("answered", *(f"{score.answered}" for score in scores))
        row("rate", *(f"{score.rate:.1f}/s" for score in scores))
        row("refused (429)", *(f"{score.refused}" for score in scores))
        row("violations", *(f"{score.report.violations}" for score in scores))
        row(f"most in any {duration_span(self.limit)}", *(f"{score.report.most_in_window}" for score in scores))
        row("wait p50", *(f"{score.wait_p50:.2f} s" for score in scores))
        row("wait p99", *(f"{score.wait_p99:.2f} s" for score in scores))
        row("latency, mean", *(f"{score.latency * 1e3:.0f} ms" for score in scores))
        return table

    def summary(self) -> str:
        """What it comes to, in a few lines."""
        ours, plain = self.scores()
        count, span = self.limit.count, duration_span(self.limit)
        used = f"{ours.use:.1%} of the provable ceiling"
        return "\n".join(
            (
                f"[bold]{ours.name}[/]: {_violations(ours)}, never more than {ours.report.most_in_window} in any {span}. "
                f"It used [bold]{used}[/],",
                f"  {count} / ({ours.gap:.4f} s gap + {ours.latency:.4f} s latency) = {ours.ceiling:.1f}/s. "
                f"Half of the calls waited {seconds_text(ours.wait_p50)}, 99 % at most {seconds_text(ours.wait_p99)}.",
                f"[bold]{plain.name}[/]: {_violations(plain)}, up to {plain.report.most_in_window} in one {span}, and "
                f"{plain.refused} refused calls, as each violation closes the API for a while.",
            )
        )


class Lines:
    """The live view for a file: a line a second."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._every = max(1.0, screen.seconds / 20)
        self._next = self._every

    def __call__(self) -> None:
        screen = self._screen
        elapsed = min(crowd.elapsed for crowd in screen.crowds)
        if elapsed < self._next:
            return
        self._next += self._every
        parts = (
            f"{score.name} {score.answered:>4} answered {score.refused:>3} refused "
            f"{score.report.in_window:>3}/{screen.limit.count}"
            for score in screen.scores()
        )
        screen.console.print(f"{elapsed:5.1f} s  {'   '.join(parts)}", highlight=False, soft_wrap=True)


def duration_span(limit: Window) -> str:
    """The limit's window, with a number: "1 s", "60 s", "250 ms"."""
    return seconds_text(limit.per_ns / 1e9) if limit.per_ns < 3600 * 10**9 else duration_text(limit.per_ns)


def _violations(score: Score) -> str:
    number = score.report.violations
    return f"[{'red' if number else 'green'}]{number or 'no'} violation{'s' * (number != 1)}[/]"
