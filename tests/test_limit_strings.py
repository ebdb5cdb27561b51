"""The tables of docs/limit-strings.md: every form makes its object, every mistake is found at its position."""

import re
from pathlib import Path

import pytest

import headway
from headway.errors import InvalidLimit

PAGE = (Path(__file__).parent.parent / "docs" / "limit-strings.md").read_text(encoding="utf-8")


def rows(heading):
    """The rows below the first table of a section, without their head, as lists of cells."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    return [cells for cells in (row.split(" | ") for row in table[2:]) if len(cells) > 1]


FORMS = [(text.strip("`"), source.strip("`")) for text, source, _ in rows("Forms")]
ERRORS = [(text.strip("`"), int(position)) for text, _, position in rows("Errors")]


@pytest.mark.parametrize(("text", "source"), FORMS)
def test_a_form_makes_its_object(text, source):
    limit = eval(source, vars(headway).copy())
    assert headway.parse_limit(text) == limit
    assert headway.parse_limit(str(limit)) == limit


@pytest.mark.parametrize(("text", "position"), ERRORS)
def test_a_mistake_is_found_at_its_position(text, position):
    with pytest.raises(InvalidLimit) as caught:
        headway.parse_limit(text)
    assert caught.value.position == position
    assert caught.value.text == text


def test_units_of_the_page_are_those_of_the_scanner():
    from headway.core.durations import UNITS

    spelled = re.findall(r"`(\w+)`", " ".join(row[1] for row in rows("Units")))
    assert set(spelled) == {*UNITS, "month", "months"}


def test_the_tables_were_read():
    assert (len(FORMS), len(ERRORS)) == (15, 19)
