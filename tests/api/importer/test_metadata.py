"""guess_metadata (Contract importer 4, 9, 10)."""

from pathlib import Path

import pytest
from tests.api.driving import Caller
from tests.api.importer.asking import guess
from tests.api.importer.conftest import refusal, uploaded
from tests.cases import each
from tests.fakes.workbook_files import column_xml, compound_file, workbook_parts, write_package
from tests.unit.formats.test_detection import CASES, D1, PNG


def workbook(directory: Path, *sheets: str) -> bytes:
    """A workbook with these sheets, each of one cell."""
    parts = workbook_parts(dict.fromkeys(sheets, column_xml(["<c><v>1</v></c>"])))
    return write_package(directory / "book.xlsx", parts).read_bytes()


class TestText:
    @pytest.mark.importer(12)
    @each(("text", "kind", "field", "quote", "record", "confidence"), [case[1:] for case in CASES])
    async def test_the_case_of_the_table_comes_out(self, ana: Caller, text, kind, field, quote, record, confidence):
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
    @each(
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
    async def test_encodings_are_told(self, ana: Caller, content, encoding):
        body = (await guess(ana, await uploaded(ana, content))).json()
        assert (body["type"], body["field_separator"], body["encoding"]) == ("csv", ",", encoding)

    @pytest.mark.importer(12)
    @each(
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
    async def test_other_files_are_refused(self, ana: Caller, content, code):
        answer = await guess(ana, await uploaded(ana, content))
        assert refusal(answer) == (400, code)
        texts = {
            "unsupported_format": "Unable to detect file format.",
            "file_empty": "File is empty, cannot detect file format.",
        }
        assert answer.json()["error"] == texts[code]

    @pytest.mark.importer(17)
    async def test_the_name_of_the_file_is_not_asked(self, ana: Caller, tmp_path: Path):
        csv = await uploaded(ana, b"a,b\n1,2\n", name="table.xlsx")
        assert (await guess(ana, csv)).json()["type"] == "csv"
        excel = await uploaded(ana, workbook(tmp_path, "one"), name="table.csv")
        assert (await guess(ana, excel)).json() == {"type": "excel", "sheet_names": ["one"]}

    async def test_an_answer_can_be_had_again(self, ana: Caller):
        reference = await uploaded(ana, b"a;b\n1;2\n")
        first = await guess(ana, reference)
        assert (await guess(ana, reference)).json() == first.json()


class TestWorkbooks:
    @pytest.mark.importer(15)
    async def test_what_only_begins_as_a_workbook(self, ana: Caller, tmp_path: Path):
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
    @each(
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
    async def test_what_is_missing_or_wrong_is_told(self, ana: Caller, query, text, code):
        answer = await ana.get("importer/file/guess_metadata/", **query)
        assert (answer.status_code, answer.json()) == (400, {"error": text, "code": code})

    @pytest.mark.importer(16)
    async def test_nul_is_refused(self, ana: Caller):
        answer = await ana.send("GET", "importer/file/guess_metadata/?file_path=a%00b&import_type=local")
        assert refusal(answer) == (400, "invalid_parameter")

    @pytest.mark.importer(10, 61)
    @pytest.mark.security("T1", "T3", "T20")
    async def test_only_own_references_name_files(self, ana: Caller, bob: Caller):
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
