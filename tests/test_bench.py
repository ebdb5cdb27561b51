"""The pictures and pages of the benchmarks: what they say agrees with itself. Nothing is measured here."""

import re
from importlib import import_module

# Not by `import`: mypy would follow it to the peers, which have no types.
chart = import_module("bench.chart").chart
Row = import_module("bench.figure").Row
Report = import_module("bench.report").Report

ROWS = [
    Row("unkeyed", "headway", 53.4, ours=True),
    Row("unkeyed", "slow", 5323.0, 96.9),
    Row("unkeyed", "fast", 471.4, 7.8),
    Row("keyed", "headway", 71.0, ours=True),
    Row("keyed", "other", 2757.0, 34.7),
]


def test_a_factor_in_the_chart_is_that_of_the_two_numbers_beside_it():
    """The medians of ratios, which the tables have, contradicted them: 471 ns beside 53 ns was labelled 7.8x."""
    picture = chart(Report(rows=ROWS, machine="a machine", load=0.0))
    shown = re.findall(r">([\d,]+) ns(?:<tspan[^>]*>([\d.]+)x</tspan>)?</text>\n</g>", picture)
    assert shown == [("53", ""), ("471", "8.9"), ("5,323", "100.4"), ("71", ""), ("2,757", "38.8")]
