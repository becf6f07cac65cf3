"""guess_header (Contract importer 5, 11)."""

from pathlib import Path

import pytest
from tests.api.driving import Caller
from tests.api.importer.asking import guess, header, preview
from tests.api.importer.conftest import refusal, uploaded
from tests.cases import each
from tests.fakes.workbook_files import column_xml, workbook_parts, write_package
from tests.unit.formats.cell_types.test_header import CASES
from tests.unit.formats.test_detection import CASES as DETECTION_CASES


@pytest.mark.importer(20)
@each(("text", "answer"), [(case[1], case[3]) for case in CASES])
async def test_the_case_of_the_table_comes_out(ana: Caller, text: str, answer: bool):
    reference = await uploaded(ana, text.encode())
    guessed = (await guess(ana, reference)).json()
    told = await header(ana, reference, guessed["type"])
    assert (told.status_code, told.json()) == (200, {"has_header": answer})
    separators = {name: guessed[name] for name in ("field_separator", "quote_char", "record_separator")}
    assert (await header(ana, reference, guessed["type"], **separators)).json() == {"has_header": answer}


@pytest.mark.importer(23)
@each("text", [case[1] for case in DETECTION_CASES])
async def test_a_file_that_can_be_previewed_has_a_header_or_none(ana: Caller, text: str):
    reference = await uploaded(ana, text.encode())
    for file_type in ("csv", "tsv", "delimiter_format"):
        assert (await header(ana, reference, file_type)).status_code == 200
        separator = {"field_separator": ";"} if file_type == "delimiter_format" else {}
        assert (await preview(ana, reference, file_type, **separator)).status_code == 200


@pytest.mark.importer(22)
async def test_a_given_separator_counts(ana: Caller):
    reference = await uploaded(ana, b"x;y\na;1\nb;2\n")
    assert (await header(ana, reference)).json() == {"has_header": False}
    assert (await header(ana, reference, field_separator=";")).json() == {"has_header": True}
    assert (await header(ana, reference, field_separator="\\x3b")).json() == {"has_header": True}
    assert (await header(ana, reference, sheet_name="one", field_separator=";")).json() == {"has_header": True}


@pytest.mark.importer(20, 21)
async def test_workbooks(ana: Caller, tmp_path: Path):
    numbers = ["<c><v>1</v></c>", "<c><v>2</v></c>"]
    text = '<c t="inlineStr"><is><t>2019</t></is></c>'
    sheets = {"text": column_xml([text, *numbers]), "number": column_xml(["<c><v>2019</v></c>", *numbers])}
    book = write_package(tmp_path / "b.xlsx", workbook_parts(sheets)).read_bytes()
    reference = await uploaded(ana, book)
    assert (await header(ana, reference, "excel", sheet_name="text")).json() == {"has_header": True}
    assert (await header(ana, reference, "excel", sheet_name="number")).json() == {"has_header": False}
    missing = await header(ana, reference, "excel")
    assert refusal(missing) == (400, "sheet_required")
    assert missing.json()["error"] == "Sheet name is required for Excel files."
    assert refusal(await header(ana, reference, "excel", sheet_name="")) == (400, "sheet_required")
    assert refusal(await header(ana, reference, "excel", sheet_name="Text")) == (400, "sheet_not_found")
    for file_type in ("csv", "tsv", "delimiter_format"):
        assert refusal(await header(ana, reference, file_type)) == (400, "format_mismatch")


async def test_text_is_no_workbook(ana: Caller):
    reference = await uploaded(ana, b"a,b\n1,2\n")
    assert refusal(await header(ana, reference, "excel", sheet_name="one")) == (400, "format_mismatch")


@pytest.mark.importer(16)
@each(
    ("query", "text", "code"),
    [
        ({}, "file_path is required.", "missing_parameter"),
        ({"file_path": "x"}, "file_type is required.", "missing_parameter"),
        ({"file_path": "x", "file_type": "csv"}, "import_type is required.", "missing_parameter"),
        (
            {"file_path": "x", "file_type": "xls"},
            (
                '"xls" is not a valid choice for file_type.'
                " Valid values: csv, tsv, excel, delimiter_format, parquet, ndjson, avro, arrow."
            ),
            "invalid_parameter",
        ),
        (
            {"file_path": "x", "file_type": "csv", "import_type": "s3"},
            '"s3" is not a valid choice for import_type. Valid values: local, remote.',
            "invalid_parameter",
        ),
    ],
)
async def test_what_is_missing_or_wrong_is_told(ana: Caller, query: dict[str, str], text: str, code: str):
    answer = await ana.get("importer/file/guess_header/", **query)
    assert (answer.status_code, answer.json()) == (400, {"error": text, "code": code})


@pytest.mark.importer(31)
async def test_a_blank_file_is_empty(ana: Caller):
    assert refusal(await header(ana, await uploaded(ana, b"\n \n"))) == (400, "file_empty")
