"""Header detection agrees with a person for at least 95 % of the tables, in sixteen languages, with and without a
header.

`annotated_headers.jsonl` contains tables of strings only (people, places, companies, jobs, colors and products), tables
whose headers are dates, years, quarters, months, hours and units, and tables without a header whose first row looks
like one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from queryserver.formats.cell_types.header import has_header
from queryserver.formats.delimited.records import RecordReader
from queryserver.formats.detection import detect_delimiters
from queryserver.formats.table_files import Delimiters

ANNOTATED = [
    json.loads(line)
    for line in (Path(__file__).parent / "annotated_headers.jsonl").read_text(encoding="utf-8").splitlines()
]
FIELD = Path(__file__).parents[3] / "field" / "import"
MISSED = {"ja_JP-0-color+first-10-lower": "signs of one letter over signs of one letter"}


def answer(table: Mapping[str, Any]) -> bool:
    return has_header(RecordReader(Delimiters(table["separator"])).feed(table["text"], final=True))


@pytest.mark.importer(73)
def test_headers_in_many_languages_are_detected() -> None:
    wrong = {table["name"] for table in ANNOTATED if answer(table) is not table["has_header"]}
    assert wrong == set(MISSED)
    assert len(wrong) <= 0.05 * len(ANNOTATED)


@pytest.mark.importer(73)
@pytest.mark.parametrize("name", ["header_of_dates.csv", "header_text_only_french.csv", "header_only_euro_sign.csv"])
def test_headers_of_field_files_are_detected(name: str) -> None:
    content = (FIELD / name).read_bytes()
    found = detect_delimiters(content, is_whole=True)
    assert has_header(RecordReader(found.delimiters).feed(content.decode(found.encoding), final=True))
