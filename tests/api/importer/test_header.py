"""The calls guess_metadata, guess_header and sql_type_mapping (Contract importer 4 to 6, 9 to 11)."""

from pathlib import Path
from typing import get_args

import pytest
from tests.api.driving import Caller
from tests.api.importer.asking import guess, header, preview
from tests.api.importer.conftest import refusal, uploaded
from tests.fakes.workbook_files import column_xml, compound_file, workbook_parts, write_package
from tests.unit.formats.cell_types.test_header import CASES
from tests.unit.formats.test_detection import CASES as DETECTION_CASES
from tests.unit.formats.test_detection import D1, PNG

from queryserver.api.schemas.requests.importer import PreviewDialect
from queryserver.imports.model import PREVIEW_DIALECTS


@pytest.mark.importer(20)
@pytest.mark.parametrize(
    ("number", "text", "answer"), [(number, case[1], case[3]) for number, case in enumerate(CASES)]
)
async def test_documented_case_gives_the_expected_result(
    ana: Caller, bob: Caller, number: int, text: str, answer: bool
):
    caller = (ana, bob)[number % 2]  # each user may keep only 50 files
    reference = await uploaded(caller, text.encode())
    guessed = (await guess(caller, reference)).json()
    told = await header(caller, reference, guessed["type"])
    assert (told.status_code, told.json()) == (200, {"has_header": answer})
    separators = {name: guessed[name] for name in ("field_separator", "quote_char", "record_separator")}
    assert (await header(caller, reference, guessed["type"], **separators)).json() == {"has_header": answer}


@pytest.mark.importer(23)
@pytest.mark.parametrize("text", [case[1] for case in DETECTION_CASES])
async def test_previewable_files_allow_header_detection(ana: Caller, text: str):
    reference = await uploaded(ana, text.encode())
    for file_type in ("csv", "tsv", "delimiter_format"):
        assert (await header(ana, reference, file_type)).status_code == 200
        separator = {"field_separator": ";"} if file_type == "delimiter_format" else {}
        assert (await preview(ana, reference, file_type, **separator)).status_code == 200


@pytest.mark.importer(22)
async def test_specified_separator_is_used(ana: Caller):
    reference = await uploaded(ana, b"x;y\na;1\nb;2\n")
    assert (await header(ana, reference)).json() == {"has_header": False}
    assert (await header(ana, reference, field_separator=";")).json() == {"has_header": True}
    assert (await header(ana, reference, field_separator="\\x3b")).json() == {"has_header": True}
    assert (await header(ana, reference, sheet_name="one", field_separator=";")).json() == {"has_header": True}


@pytest.mark.importer(20, 21)
async def test_header_of_a_worksheet_is_detected_by_cell_types(ana: Caller, tmp_path: Path):
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
@pytest.mark.parametrize(
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
async def test_header_reports_missing_and_invalid_parameters(ana: Caller, query: dict[str, str], text: str, code: str):
    answer = await ana.get("importer/file/guess_header/", **query)
    assert (answer.status_code, answer.json()) == (400, {"error": text, "code": code})


@pytest.mark.importer(31)
async def test_blank_file_is_reported_as_empty(ana: Caller):
    assert refusal(await header(ana, await uploaded(ana, b"\n \n"))) == (400, "file_empty")


def workbook(directory: Path, *sheets: str) -> bytes:
    """Return a workbook with sheets of these names. Each sheet has one cell."""
    parts = workbook_parts(dict.fromkeys(sheets, column_xml(["<c><v>1</v></c>"])))
    return write_package(directory / "book.xlsx", parts).read_bytes()


class TestText:
    @pytest.mark.importer(12)
    @pytest.mark.parametrize(
        ("text", "kind", "field", "quote", "record", "confidence"), [case[1:] for case in DETECTION_CASES]
    )
    async def test_documented_case_gives_the_expected_result(
        self, ana: Caller, text, kind, field, quote, record, confidence
    ):
        answer = await guess(ana, await uploaded(ana, text.encode()))
        assert answer.status_code == 200, answer.text
        assert answer.json() == {
            "type": str(kind),
            "field_separator": field,
            "quote_char": quote,
            "record_separator": record,
            "encoding": "utf-8",
            "confidence": confidence,
        }

    @pytest.mark.importer(12, 38)
    @pytest.mark.parametrize(
        ("content", "encoding"),
        [
            (b"\xef\xbb\xbf" + D1.encode(), "utf-8-sig"),
            (D1.encode("utf-16-le"), "utf-16-le"),
            (b"\xff\xfe" + D1.encode("utf-16-le"), "utf-16-le"),
            (D1.encode("utf-16-be"), "utf-16-be"),
            (b"\xfe\xff" + D1.encode("utf-16-be"), "utf-16-be"),
            ("a,é".encode("iso-8859-1"), "iso-8859-1"),
            ("a,€".encode("windows-1252"), "windows-1252"),
        ],
    )
    async def test_detected_encoding_is_returned(self, ana: Caller, content, encoding):
        body = (await guess(ana, await uploaded(ana, content))).json()
        assert (body["type"], body["field_separator"], body["encoding"]) == ("csv", ",", encoding)

    @pytest.mark.importer(65)
    async def test_encoding_can_be_specified(self, ana: Caller):
        reference = await uploaded(ana, "имя,город\nИван,Москва\n".encode("cp1251"))
        found = (await guess(ana, reference)).json()
        assert (found["encoding"], found["confidence"] >= 0.8, "warnings" in found) == ("windows-1251", True, False)
        given = (await guess(ana, reference, encoding="CP1251")).json()
        assert (given["encoding"], given["confidence"]) == ("windows-1251", 1.0)
        assert refusal(await guess(ana, reference, encoding="klingon")) == (400, "invalid_parameter")
        assert refusal(await guess(ana, reference, encoding="utf-8")) == (400, "encoding_error")

    @pytest.mark.importer(65)
    async def test_uncertain_encoding_causes_a_warning(self, ana: Caller):
        found = (await guess(ana, await uploaded(ana, "a,é\n1,2\n".encode("iso-8859-1")))).json()
        assert found["confidence"] < 0.8
        assert found["warnings"] == [{"code": "encoding_uncertain", "count": 1, "rows": []}]

    @pytest.mark.importer(12)
    @pytest.mark.parametrize(
        ("content", "code"),
        [
            (b'[{"a":1,"b":2},\n{"a":3,"b":4}]\n', "unsupported_format"),
            (PNG, "unsupported_format"),
            (b"\x00\x01\x02\x03", "unsupported_format"),
            (b"\n\n", "file_empty"),
            (b"\xef\xbb\xbf", "file_empty"),
            (b"%PDF-1.7\n", "unsupported_format"),
        ],
    )
    async def test_unsupported_files_are_refused(self, ana: Caller, content, code):
        answer = await guess(ana, await uploaded(ana, content))
        assert refusal(answer) == (400, code)
        texts = {
            "unsupported_format": "Unable to detect file format.",
            "file_empty": "File is empty, cannot detect file format.",
        }
        assert answer.json()["error"] == texts[code]

    @pytest.mark.importer(17)
    async def test_file_name_does_not_affect_detection(self, ana: Caller, tmp_path: Path):
        csv = await uploaded(ana, b"a,b\n1,2\n", name="table.xlsx")
        assert (await guess(ana, csv)).json()["type"] == "csv"
        excel = await uploaded(ana, workbook(tmp_path, "one"), name="table.csv")
        assert (await guess(ana, excel)).json() == {"type": "excel", "sheet_names": ["one"]}

    async def test_repeated_call_returns_the_same_response(self, ana: Caller):
        reference = await uploaded(ana, b"a;b\n1;2\n")
        first = await guess(ana, reference)
        assert (await guess(ana, reference)).json() == first.json()


class TestWorkbooks:
    @pytest.mark.importer(15)
    async def test_damaged_and_encrypted_workbooks_are_refused(self, ana: Caller, tmp_path: Path):
        good = workbook(tmp_path, "one")
        word = write_package(tmp_path / "a.docx", {"word/document.xml": "<document/>"}).read_bytes()
        for content, code in (
            (good[: len(good) // 2], "file_corrupt"),
            (compound_file(["EncryptedPackage", "EncryptionInfo"]), "file_encrypted"),
            (word, "unsupported_format"),
            (compound_file(["WordDocument"]), "unsupported_format"),
        ):
            reference = await uploaded(ana, content, name="book.xlsx")
            assert refusal(await guess(ana, reference)) == (400, code)
            assert refusal(await guess(ana, reference)) == (400, code)


class TestParameters:
    @pytest.mark.importer(16)
    @pytest.mark.parametrize(
        ("query", "text", "code"),
        [
            ({"file_path": "", "import_type": "local"}, "file_path is required.", "missing_parameter"),
            ({"import_type": "local"}, "file_path is required.", "missing_parameter"),
            ({"file_path": "x"}, "import_type is required.", "missing_parameter"),
            ({"file_path": "x", "import_type": ""}, "import_type is required.", "missing_parameter"),
            (
                {"file_path": "x", "import_type": "Local"},
                '"Local" is not a valid choice for import_type. Valid values: local, remote.',
                "invalid_parameter",
            ),
            ({"file_path": "x", "import_type": "local"}, "File not found.", "file_not_found"),
            ({"file_path": "", "import_type": "nowhere"}, "file_path is required.", "missing_parameter"),
        ],
    )
    async def test_metadata_reports_missing_and_invalid_parameters(self, ana: Caller, query, text, code):
        answer = await ana.get("importer/file/guess_metadata/", **query)
        assert (answer.status_code, answer.json()) == (400, {"error": text, "code": code})

    @pytest.mark.importer(16)
    async def test_null_character_is_refused(self, ana: Caller):
        answer = await ana.send("GET", "importer/file/guess_metadata/?file_path=a%00b&import_type=local")
        assert refusal(answer) == (400, "invalid_parameter")

    @pytest.mark.importer(10, 61)
    @pytest.mark.security("T1", "T3", "T20")
    async def test_only_own_references_give_access_to_files(self, ana: Caller, bob: Caller):
        reference = await uploaded(ana, b"a,b\n1,2\n")
        assert (await guess(ana, reference)).status_code == 200
        wrong = [
            "/etc/passwd",
            "../x",
            "upload/../../x",
            "file:///etc/passwd",
            f"{reference}/x",
            f"../{reference}",
            reference[:-1],
            reference.replace("upload/", "upload//"),
            "upload/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA/sales.csv",
        ]
        answers = [await guess(bob, reference), *[await guess(ana, path) for path in wrong]]
        for answer in answers:
            assert (answer.status_code, answer.json()) == (400, {"error": "File not found.", "code": "file_not_found"})
        assert (await guess(ana, reference)).status_code == 200


# The types in the order of the specification.
_HIVE = [
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "INTERVAL DAY TO SECOND",
    "SMALLINT", "STRING", "STRUCT", "TIMESTAMP", "TINYINT",
]  # fmt: skip

_IMPALA = [
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "SMALLINT", "STRING",
    "STRUCT", "TIMESTAMP", "TINYINT",
]  # fmt: skip

_TRINO = [
    "ARRAY", "BIGINT", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "INTEGER", "INTERVAL DAY TO SECOND", "JSON", "REAL",
    "ROW", "SMALLINT", "STRING", "TIMESTAMP", "TINYINT", "VARBINARY", "VARCHAR",
]  # fmt: skip

_PHOENIX = [
    "ARRAY", "BIGINT", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "SMALLINT", "STRING", "TIME",
    "TIMESTAMP", "TINYINT", "UNSIGNED_INT", "UNSIGNED_LONG", "UNSIGNED_SMALLINT", "UNSIGNED_TINYINT", "VARBINARY",
    "VARCHAR",
]  # fmt: skip


@pytest.mark.importer(48)
@pytest.mark.parametrize(
    ("dialect", "names"),
    [("hive", _HIVE), ("sparksql", _HIVE), ("impala", _IMPALA), ("trino", _TRINO), ("phoenix", _PHOENIX)],
)
async def test_each_dialect_has_its_type_list(ana: Caller, dialect: str, names: list[str]):
    told = await ana.get("importer/sql_type_mapping/", sql_dialect=dialect)
    assert (told.status_code, told.json()) == (200, names)
    assert (await ana.get("importer/sql_type_mapping", sql_dialect=dialect)).json() == names
    assert names == sorted(set(names))


@pytest.mark.importer(26, 48)
@pytest.mark.parametrize("dialect", ["Hive", "oracle", " hive", "hive "])
async def test_unknown_dialects_are_refused(ana: Caller, dialect: str):
    refused = await ana.get("importer/sql_type_mapping/", sql_dialect=dialect)
    assert refused.status_code == 400
    assert refused.json() == {
        "error": f'"{dialect}" is not a valid choice for sql_dialect. Valid values: {", ".join(PREVIEW_DIALECTS)}.',
        "code": "invalid_dialect",
    }


@pytest.mark.importer(48)
@pytest.mark.parametrize("query", [{}, {"sql_dialect": ""}])
async def test_dialect_is_required(ana: Caller, query: dict[str, str]):
    refused = await ana.get("importer/sql_type_mapping/", **query)
    seen = (refused.status_code, refused.json())
    assert seen == (400, {"error": "sql_dialect is required.", "code": "missing_parameter"})


async def test_dialect_of_the_connector_is_the_default(ana: Caller):
    names = (await ana.get("importer/sql_type_mapping", connector="duckdb")).json()
    assert {"HUGEINT", "INTEGER", "VARCHAR"} & set(names) == {"INTEGER", "VARCHAR"}
    assert (await ana.get("importer/sql_type_mapping", connector="duckdb", sql_dialect="impala")).json() == _IMPALA
    refused = await ana.get("importer/sql_type_mapping", connector="nobody")
    assert (refused.status_code, refused.json()["code"]) == (400, "connector_not_found")


async def test_last_of_repeated_parameters_counts(ana: Caller):
    told = await ana.send("GET", "importer/sql_type_mapping/?sql_dialect=nothing&sql_dialect=impala&unknown=1")
    assert (told.status_code, told.json()) == (200, _IMPALA)


def test_preview_dialects_match_the_type_lists():
    assert get_args(PreviewDialect) == PREVIEW_DIALECTS
