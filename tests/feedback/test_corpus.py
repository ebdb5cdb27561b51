"""Every answer of the corpus is read as it says."""

import re
from pathlib import Path

import pytest

from headway import feedback

NOW = 1767225600.0
CORPUS = Path(__file__).parent / "corpus.txt"


def cases():
    text = re.sub(r"^# .*\n|^#\n", "", CORPUS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for block in text.split("\n## ")[1:]:
        title, _, rest = block.partition("\n")
        profile, _, about = title.partition(": ")
        answer, _, expected = rest.partition("\n=> ")
        head, _, body = answer.partition("\n\n")
        status, *lines = head.splitlines()
        headers = [tuple(part.strip(" ") for part in line.split(":", 1)) for line in lines]
        yield pytest.param(
            None if profile == "-" else profile, int(status), headers, body or None, expected.strip(),
            id=f"{profile}: {about}".replace("-: ", ""),
        )  # fmt: skip


CASES = list(cases())


def plain(number):
    return "-" if number is None else f"{round(number, 9):.9g}"


def shown(said):
    """A `Feedback` in the words of the corpus."""
    if said is None:
        return "nothing"
    words = ["refused"] if said.refused else []
    words += [
        f"{name}={plain(value)}"
        for name, value in (("wait", said.wait), ("remaining", said.remaining), ("reset", said.reset))
        if value is not None
    ]
    words += [f"scope={said.scope}"] if said.scope else []
    if said.limits:
        limits = (f"{one.name}:{plain(one.quota)}/{plain(one.window)}" for one in said.limits)
        words.append("limits=" + "|".join(limits))
    return " ".join(words)


@pytest.mark.parametrize(("profile", "status", "headers", "body", "expected"), CASES)
def test_an_answer_is_read_as_the_corpus_says(profile, status, headers, body, expected):
    said = feedback.read(status, headers, body, profile=profile, now=NOW)
    assert shown(said) == expected


def test_the_corpus_is_large_and_has_every_profile():
    assert len(CASES) >= 120
    assert {case.values[0] for case in CASES} - {None} == set(feedback.profiles())
    assert len(feedback.profiles()) >= 18
