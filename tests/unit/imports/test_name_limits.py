"""Column names adapted to the limits of each engine (Contract importer 7.3.5)."""

import pytest

from queryserver.imports.model import PREVIEW_DIALECTS, engine_names, name_limit

QUESTION = (
    "Consider the following hypothetical situations: in Lottery A, you have a 50% chance of success, in Lottery B"
)
"""In surveys, a column header may be a complete question."""


@pytest.mark.importer(67)
@pytest.mark.parametrize(
    ("dialect", "names", "shown"),
    [
        ("postgresql", ["id", QUESTION], ["id", QUESTION[:63]]),
        ("postgresql", [f"{QUESTION} 1", f"{QUESTION} 2"], [QUESTION[:63], f"{QUESTION[:61]}_2"]),
        ("postgresql", [QUESTION.upper(), f"{QUESTION} 2"], [QUESTION.upper()[:63], f"{QUESTION[:61]}_2"]),
        ("postgresql", [f"{QUESTION} 1", QUESTION[:63]], [f"{QUESTION[:61]}_2", QUESTION[:63]]),
        # 63 bytes hold 31 letters of two bytes or 21 letters of three bytes; a letter is never split
        ("postgresql", ["é" * 40], ["é" * 31]),
        ("postgresql", ["日" * 30, "日" * 29], ["日" * 21, "日" * 20 + "_2"]),
        ("postgresql", ["a" + "😀" * 16], ["a" + "😀" * 15]),
        # a letter is never separated from its combining mark
        ("postgresql", ["x" * 62 + "e\u0301" + "y"], ["x" * 62]),
        ("postgresql", ["x" * 62 + " " + "y" * 9], ["x" * 62]),
        ("mysql", ["é" * 64, "日" * 65], ["é" * 64, "日" * 64]),
        ("impala", ["x" * 129], ["x" * 128]),
        ("duckdb", [QUESTION, "日" * 255], [QUESTION, "日" * 255]),
    ],
)
def test_overlong_names_are_shortened_and_stay_unique(dialect: str, names: list[str], shown: list[str]):
    assert engine_names(names, dialect) == shown


@pytest.mark.importer(67)
@pytest.mark.parametrize("dialect", PREVIEW_DIALECTS)
def test_two_thousand_similar_names_become_unique(dialect: str):
    names = engine_names([f"{number} {QUESTION} {QUESTION}"[::-1] for number in range(2_000)], dialect)
    assert len({name.lower() for name in names}) == 2_000
    assert all(name_limit(dialect).allows(name) for name in names)
