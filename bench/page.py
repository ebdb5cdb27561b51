"""docs/benchmarks.md, written by a full run."""

from __future__ import annotations

from collections.abc import Iterable

from bench.report import Report
from bench.sections import GROUPS

HEAD = """\
# Benchmarks

Written by `make bench` on {date}; change the code in `bench/`, not this page.

{machine}. {busy}

![Nanoseconds per decision, headway and its peers](benchmarks.svg)

Ratios are the figures (medians of rounds), nanoseconds only illustrate them (the first decile of the rounds, of every
side): on another machine, or a busy one, all sides move, and mostly together. A factor in the chart is that of the two
nanosecond figures beside it, and may differ a little from the median in the tables.
"""

METHOD = """\
## How it is measured

- One run, one process, the sides in turns of some milliseconds (A B A B ...). Every round gives one ratio of
  neighbours in time; the figure is the median of the rounds, the range is their middle half.
- "clock" is a call of `time.monotonic_ns()` in the same generated loop, `for _ in range(n): f()`. The loop's own cost
  is in both sides and is not taken out. The garbage collector is on.
- A call is measured on five fresh limiters, the interpreted form and the blocked threads in five fresh processes: what
  depends on where memory happens to lie differs more between those than between rounds. A bar inside the middle half
  is neither safely held nor safely missed.
- "Net of building it": the loop that only builds the string is timed in the same round and subtracted, an empty loop
  is added back.
- Before and after its rounds a single call of every side is checked to be granted: a loop of refusals is not a figure.
- The interpreted form, the threads and the million keys each run in a process of their own. Bytes per key are the
  growth of resident memory, key strings included. Keys idle on a `ManualClock`; then one other key is used.
- Peers are set up for their fastest granted call, in memory, with a limit too high to matter. One that logs every grant
  gets an empty log for each turn; one that expires keys in a thread starts it before its turn, and ends it before
  ours. ratelimit is a decorator: as an unkeyed call it counts net of calling the bare function, as a decorator it
  stands beside ours.
- On Redis, all sides talk to one private Valkey on TCP loopback, without persistence; "raw INCR" is redis-py with
  hiredis. A Window's decision is acquired and completed. Script calls are counted by the server itself. Uses are
  audited in the workers, between grant and hand-back, on the monotonic clock that all processes of a machine share.
- A crowd on a shared ledger has the default options, each a private server of its own. Of the provable ceiling (every
  permit used once per gap), the share is the gap over the mean time from each use to the n-th after it, measured for
  eight seconds while all wait; then all leave. Scripts are timed by the server (`SLOWLOG`, wall time: on a busy machine
  that includes what other programs take), `PING` is asked every 2 ms by another process; both go before other programs
  where that is allowed.
- With `prefetch`, decisions are timed as in memory, on tokens of a private Valkey. Four processes take turns with and
  without it, two seconds each, three times; a refusal is a decision too, and how many were granted is beside it. Calls,
  shares and the idle process are measured in the same twenty seconds, one process asking four limiters on a schedule.
- The console's page measures itself, in the system's Chromium: from the answer to a call until its row shows it.
- Events of `Once` all differ, and all are accepted; the gate's clock says so afterwards. An event is late by the time
  from when it is due until a subscriber has it in hand. A million are pending on a clock that stands still until all
  are there.

## Again, on your machine

```sh
make bench                              # all of it, some minutes; writes this page
.venv/bin/python -m bench --quick       # half a minute, writes nothing
.venv/bin/python -m bench --only bucket --json figures.json
```
"""


def grid(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown; every column but the first is flush right."""
    heads = list(heads)
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))


def page(report: Report) -> str:
    """The whole page."""
    bars = grid(
        ("figure", "measured", "bar", "", "middle half", "ns"),
        (
            (
                line.figure.title,
                f"{line.value} {line.unit}".rstrip(),
                line.bar,
                {True: "holds", False: "**missed**", None: ""}[line.holds],
                line.half,
                line.ns,
            )
            for line in report.lines
        ),
    )
    notes = [f"- {line.figure.title}: {line.reading.note}." for line in report.lines if line.reading.note]
    parts = [
        HEAD.format(date=report.date, machine=report.machine, busy=report.busy),
        "## Measured, and the bars set for it\n",
        bars,
        "",
    ]
    parts += [*notes, "", "## Beside its peers\n"]
    for name, title in GROUPS.items():
        rows = report.group(name)
        if not rows:
            continue
        remarks = {row.name: f" ({row.note})" if row.note else "" for row in rows}
        body = ((row.name + remarks[row.name], f"{row.ns:.0f}", f"{row.ratio:.1f}") for row in rows)
        parts += [grid((title, "ns per decision", "over ours"), body), ""]
    parts.append(METHOD)
    return "\n".join(parts)
