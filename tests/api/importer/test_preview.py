"""Previews of delimited files (Contract importer 7, 8, 12)."""

import threading
from typing import Any

import pytest
from tests.api.driving import Api, Caller
from tests.api.importer.asking import asked_raw, guess, header, names, preview, shown, types
from tests.api.importer.conftest import CONTENT, refusal, uploaded
from tests.unit.formats.cell_types.test_classes import ROWS, expected
from tests.unit.formats.test_detection import CASES

from queryserver.api.v1 import importer as preview_call
from queryserver.imports.model import PREVIEW_DIALECTS, SQL_TYPES

MIB = 1024 * 1024


def warnings(body: dict[str, Any]) -> dict[str, tuple[int, list[int]]]:
    return {one["code"]: (one["count"], one["rows"]) for one in body.get("warnings", ())}


class TestAnswer:
    @pytest.mark.importer(3, 27)
    async def test_rows_are_text_in_file_order(self, ana: Caller):
        assert await shown(ana, CONTENT) == {
            "type": "csv",
            "columns": [
                {"name": "id", "type": "INT", "source": 1},
                {"name": "price", "type": "DOUBLE", "source": 2},
                {"name": "ok", "type": "BOOLEAN", "source": 3},
            ],
            "preview_data": [["1", "1.50", "true"], ["2", "2", ""]],
        }

    @pytest.mark.importer(28)
    async def test_specified_example_previews_are_reproduced(self, ana: Caller):
        first = await shown(ana, "col1,col2\n1.1,true\n2.2,false")
        assert (names(first), types(first)) == (["col1", "col2"], ["DOUBLE", "BOOLEAN"])
        assert first["preview_data"] == [["1.1", "true"], ["2.2", "false"]]
        second = await shown(ana, "sample1,sample2\n1.1,true\n2.2,false", has_header="false")
        assert (names(second), types(second)) == (["column_1", "column_2"], ["STRING", "STRING"])
        assert (len(second["preview_data"]), second["preview_data"][0]) == (3, ["sample1", "sample2"])
        third = await shown(ana, "string_col\nfoo\nbar", sql_dialect="trino")
        assert third["columns"] == [{"name": "string_col", "type": "VARCHAR", "source": 1}]

    @pytest.mark.importer(27)
    async def test_fifty_rows_are_shown(self, ana: Caller):
        content = "n\n" + "".join(f"{n}\n" for n in range(60))
        assert (await shown(ana, content))["preview_data"] == [[str(n)] for n in range(50)]
        assert len((await shown(ana, content, has_header="false"))["preview_data"]) == 50

    @pytest.mark.importer(27, 39, 51)
    @pytest.mark.security("T1")
    async def test_cells_keep_the_file_text(self, ana: Caller):
        body = await shown(ana, 'a,b,c,d\n1.50,007,\\N, x \n=1+1,@SUM(A1),,"\n"\n')
        assert body["preview_data"] == [["1.50", "007", "\\N", " x "], ["=1+1", "@SUM(A1)", "", "\n"]]

    async def test_large_preview_is_serialized_off_the_event_loop(self, ana: Caller, monkeypatch: pytest.MonkeyPatch):
        def noted(*arguments: Any) -> Any:
            threads.append(threading.current_thread().name)
            return write(*arguments)

        threads: list[str] = []
        write = preview_call._preview
        monkeypatch.setattr(preview_call, "_preview", noted)
        row = ",".join(f"x{number}" for number in range(2000))
        body = await shown(ana, "\n".join([row] * 60), has_header="false")
        assert body["preview_data"] == [row.split(",")] * 50
        assert len(body["columns"]) == 2000
        long = "y" * 300_000
        assert (await shown(ana, f"a\n{long}\n"))["preview_data"] == [[long]]
        assert [name.partition("_")[0] for name in threads] == ["answers", "answers"]

    @pytest.mark.importer(30)
    async def test_column_names_are_unique_and_never_empty(self, ana: Caller):
        body = await shown(ana, f'a,A,,"two\nlines", padded ,a,{"x" * 300}\n1,2,3,4,5,6,7\n')
        assert names(body) == ["a", "A_2", "column_3", "two lines", "padded", "a_3", "x" * 255]

    @pytest.mark.importer(31)
    @pytest.mark.parametrize(("dialect", "kind"), [("hive", "STRING"), ("trino", "VARCHAR"), ("phoenix", "VARCHAR")])
    async def test_header_only_file_has_columns_without_rows(self, ana: Caller, dialect, kind):
        body = await shown(ana, "a,b\n", sql_dialect=dialect)
        assert (names(body), types(body), body["preview_data"]) == (["a", "b"], [kind, kind], [])

    @pytest.mark.importer(31, 47)
    async def test_blank_file_is_reported_as_empty(self, ana: Caller):
        reference = await uploaded(ana, b"\n  \n")
        for _ in range(2):
            assert refusal(await preview(ana, reference)) == (400, "file_empty")

    @pytest.mark.importer(32)
    async def test_rows_of_unexpected_width_cause_warnings(self, ana: Caller):
        body = await shown(ana, "a,b\n1\n1,2,3\n1,2\n1,2,3,4\n")
        assert body["preview_data"] == [["1", ""], ["1", "2"], ["1", "2"], ["1", "2"]]
        assert body["warnings"] == [
            {"code": "long_rows", "count": 2, "rows": [3, 5]},
            {"code": "short_rows", "count": 1, "rows": [2]},
        ]

    @pytest.mark.importer(32)
    async def test_column_count_without_a_header_is_the_most_frequent_width(self, ana: Caller):
        body = await shown(ana, "1\n1,2\n1,2,3\n1,2\n1,2,3\n", has_header="false")
        assert (len(body["columns"]), warnings(body)) == (3, {"short_rows": (3, [1, 2, 4])})


class TestTypes:
    @pytest.mark.importer(29)
    @pytest.mark.parametrize(("cells", "row"), [row[1:] for row in ROWS])
    async def test_type_table_cases_give_their_results_in_all_dialects(self, ana: Caller, cells, row):
        reference = await uploaded(ana, "\n".join(["c;k", *(f"{cell};" for cell in cells)]).encode())
        for dialect, name in expected(row).items():
            answer = await preview(ana, reference, field_separator=";", sql_dialect=dialect)
            assert types(answer.json())[0] == name
            assert name in SQL_TYPES[dialect]

    @pytest.mark.importer(40)
    async def test_long_numbers_keep_every_digit(self, ana: Caller):
        number = "12345678901234567890123456789012345678"
        body = await shown(ana, f"a,b\n{number},1.2345678901234567\n")
        assert body["columns"] == [
            {"name": "a", "type": "DECIMAL", "precision": 38, "scale": 0, "source": 1},
            {"name": "b", "type": "DECIMAL", "precision": 17, "scale": 16, "source": 2},
        ]
        assert body["preview_data"] == [[number, "1.2345678901234567"]]

    @pytest.mark.importer(29, 41)
    async def test_integers_of_a_partial_sample_are_bigint(self, ana: Caller):
        reference = await uploaded(ana, b"n\n" + b"1\n" * 10_001)
        for dialect in PREVIEW_DIALECTS:
            body = (await preview(ana, reference, sql_dialect=dialect)).json()
            kind = "INTEGER" if dialect == "sqlite" else "BIGINT"
            assert body["columns"] == [{"name": "n", "type": kind, "source": 1}]
            assert "warnings" not in body

    async def test_truncated_sample_causes_a_warning(self, ana: Caller):
        body = await shown(ana, b"n,t\n" + (b"1," + b"x" * (MIB - 10) + b"\n") * 9)
        assert warnings(body) == {"truncated_sample": (1, [])}
        assert (types(body), len(body["preview_data"])) == (["BIGINT", "STRING"], 7)


class TestSeparators:
    @pytest.mark.importer(18, 19)
    @pytest.mark.parametrize("escape", [False, True])
    @pytest.mark.parametrize("text", [case[1] for case in CASES])
    async def test_guessed_separators_can_be_sent_back(self, api: Api, text: str, escape: bool):
        ana = await api.user("ana")  # a new user, because each user may keep only a limited number of files
        reference = await uploaded(ana, text.encode())
        guessed = (await guess(ana, reference)).json()
        separators = {name: guessed[name] for name in ("field_separator", "quote_char", "record_separator")}
        if escape:
            separators = {name: "".join(map(escaped, value)) for name, value in separators.items()}
        rest = {"file_path": reference, "import_type": "local", "sql_dialect": "hive", "has_header": "true"}
        answer = await asked_raw(ana, "preview/", file_type=guessed["type"], **separators, **rest)
        assert answer.status_code == 200, answer.text
        first = text.splitlines()[0]
        assert len(answer.json()["columns"]) == len(first.split(guessed["field_separator"]))

    @pytest.mark.importer(19)
    @pytest.mark.parametrize("separator", ["\x01", "\\x01", "\\u0001"])
    async def test_control_characters_are_accepted_raw_or_escaped(self, ana: Caller, separator):
        body = await shown(ana, b"a\x01b\n1\x012\n", "delimiter_format", field_separator=separator)
        assert (body["type"], names(body)) == ("delimiter_format", ["a", "b"])

    @pytest.mark.importer(35)
    @pytest.mark.parametrize(
        ("text", "separators"),
        [
            ("a||b\n1||2\n", {"field_separator": "||"}),
            ("aéb\n1é2\n", {"field_separator": "é"}),
            ("a;b###1;2###", {"field_separator": ";", "record_separator": "###"}),
            ("a,b\\1,2\\", {"field_separator": ",", "record_separator": "\\"}),
            ("a\\|b\n1\\|2\n", {"field_separator": "\\|"}),
        ],
    )
    async def test_separators_may_have_several_characters(self, ana: Caller, text, separators):
        body = await shown(ana, text, "delimiter_format", **separators)
        assert (names(body), body["preview_data"]) == (["a", "b"], [["1", "2"]])

    @pytest.mark.importer(34)
    async def test_null_quote_character_disables_quoting(self, ana: Caller):
        body = await shown(ana, 'a,b\n"1,2"\n', quote_char="\\0")
        assert body["preview_data"] == [['"1', '2"']]

    @pytest.mark.importer(36)
    @pytest.mark.parametrize(
        "separators",
        [
            {"field_separator": '"'},
            {"field_separator": ";", "quote_char": ";"},
            {"quote_char": "\\n"},
            {"field_separator": "\\n"},
            {"field_separator": "a\\nb"},
            {"field_separator": "x" * 9},
            {"quote_char": "''"},
            {"record_separator": "x" * 9},
            {"field_separator": "|'|", "quote_char": "'"},
        ],
    )
    async def test_contradicting_separators_are_refused(self, ana: Caller, separators):
        reference = await uploaded(ana)
        assert refusal(await preview(ana, reference, **separators)) == (400, "invalid_parameter")

    @pytest.mark.importer(37)
    @pytest.mark.parametrize(
        ("text", "record"),
        [
            ("a,b\r\n1,2\r\n3,4\r\n", None),
            ("a,b\r\n1,2\r\n3,4\r\n", "\\r\\n"),
            ("a,b\n1,2\n3,4\n", "\\r\\n"),
            ("a,b\r\n1,2\n3,4\r\n", None),
            ("a,b\r1,2\r3,4\r", "\\r"),
            ("a,b\n1,2\n3,4", ""),
        ],
    )
    async def test_line_ending_style_does_not_matter(self, ana: Caller, text, record):
        body = await shown(ana, text, record_separator=record)
        assert (names(body), body["preview_data"]) == (["a", "b"], [["1", "2"], ["3", "4"]])


class TestQuotes:
    @pytest.mark.importer(33)
    async def test_quoted_fields_may_contain_separators_line_ends_and_quotes(self, ana: Caller):
        body = await shown(ana, 'a,b\n"x,y","1\n2"\n"say ""hi""",z"z\n')
        assert body["preview_data"] == [["x,y", "1\n2"], ['say "hi"', 'z"z']]

    @pytest.mark.importer(33)
    async def test_unclosed_quote_does_not_consume_the_file(self, ana: Caller):
        body = await shown(ana, 'a,b\n1,"open\n2,x\n3,y\n')
        assert body["preview_data"] == [["1", '"open'], ["2", "x"], ["3", "y"]]
        assert warnings(body) == {"unclosed_quote": (1, [2])}


class TestEncodings:
    @pytest.mark.importer(38)
    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1"])
    async def test_text_in_every_encoding_is_decoded(self, ana: Caller, encoding):
        body = await shown(ana, "Größe,b\né,2\n".encode(encoding))
        assert (names(body), body["preview_data"]) == (["Größe", "b"], [["é", "2"]])

    @pytest.mark.importer(38)
    async def test_specified_encoding_overrides_detection(self, ana: Caller):
        reference = await uploaded(ana, "имя,b\nя,2\n".encode("koi8-r"))
        assert names((await preview(ana, reference, encoding="KOI8-R")).json())[0] == "имя"
        japanese = await uploaded(ana, "名前,b\n東京,2\n".encode("shift_jis"))
        assert (await preview(ana, japanese, encoding="shift_jis")).json()["preview_data"] == [["東京", "2"]]

    async def test_invalid_and_mismatched_encodings_are_refused(self, ana: Caller):
        reference = await uploaded(ana, b"a,b\n\xff\xfe\xfd,\xfc\n")
        assert refusal(await preview(ana, reference, encoding="klingon")) == (400, "invalid_parameter")
        assert refusal(await preview(ana, reference, encoding="utf-8")) == (400, "encoding_error")
        good = await preview(ana, reference, encoding="iso-8859-1")
        assert good.json()["preview_data"] == [["ÿþý", "ü"]]

    @pytest.mark.importer(65)
    async def test_only_a_guessed_encoding_can_be_uncertain(self, ana: Caller):
        reference = await uploaded(ana, "a,é\n1,2\n".encode("iso-8859-1"))
        assert warnings((await preview(ana, reference)).json()) == {"encoding_uncertain": (1, [])}
        assert warnings((await preview(ana, reference, encoding="windows-1250")).json()) == {}

    @pytest.mark.importer(65)
    async def test_japanese_windows_text_is_shown(self, ana: Caller):
        body = await shown(ana, "氏名,住所\n髙橋,東京都①番\n山﨑,大阪府\n".encode("cp932"))
        assert (names(body), body["preview_data"]) == (["氏名", "住所"], [["髙橋", "東京都①番"], ["山﨑", "大阪府"]])
        assert warnings(body) == {}

    @pytest.mark.importer(66)
    async def test_trailing_dos_end_mark_is_not_a_row(self, ana: Caller):
        assert (await shown(ana, b"a,b\r\n1,2\r\n\x1a"))["preview_data"] == [["1", "2"]]

    async def test_undecodable_characters_cause_a_warning(self, ana: Caller):
        body = await shown(ana, b"a,b\n1,2\n3,\xff\n" + b"1,2\n" * 10, encoding="utf-8")
        assert body["preview_data"][1] == ["3", "\ufffd"]
        assert warnings(body) == {"undecodable": (1, [3])}


class TestParameters:
    @pytest.mark.importer(16, 24, 26)
    @pytest.mark.parametrize(
        ("changes", "text", "code"),
        [
            ({"file_path": None}, "file_path is required.", "missing_parameter"),
            ({"file_type": None}, "file_type is required.", "missing_parameter"),
            ({"import_type": None}, "import_type is required.", "missing_parameter"),
            ({"sql_dialect": None}, "sql_dialect is required.", "missing_parameter"),
            ({"has_header": None}, "has_header is required.", "missing_parameter"),
            ({"has_header": ""}, "has_header is required.", "missing_parameter"),
            (
                {"file_type": "CSV"},
                (
                    '"CSV" is not a valid choice for file_type.'
                    " Valid values: csv, tsv, excel, delimiter_format, parquet, ndjson, avro, arrow."
                ),
                "invalid_parameter",
            ),
            (
                {"sql_dialect": "Hive"},
                (
                    '"Hive" is not a valid choice for sql_dialect.'
                    " Valid values: duckdb, hive, impala, mysql, phoenix, postgresql, sparksql, sqlite, trino."
                ),
                "invalid_dialect",
            ),
            (
                {"import_type": "LOCAL"},
                '"LOCAL" is not a valid choice for import_type. Valid values: local, remote.',
                "invalid_parameter",
            ),
        ],
    )
    async def test_preview_reports_missing_and_invalid_parameters(self, ana: Caller, changes, text, code):
        query = {"file_path": "x", "file_type": "csv", **changes}
        answer = await preview(ana, query.pop("file_path"), query.pop("file_type"), **query)
        assert (answer.status_code, answer.json()) == (400, {"error": text, "code": code})

    @pytest.mark.importer(24)
    @pytest.mark.parametrize(("word", "rows"), [("TRUE", 2), ("1", 2), ("on", 2), ("Off", 3), ("0", 3), ("no", 3)])
    async def test_has_header_accepts_boolean_words(self, ana: Caller, word, rows):
        assert len((await shown(ana, CONTENT, has_header=word))["preview_data"]) == rows

    @pytest.mark.importer(24)
    async def test_has_header_refuses_other_words(self, ana: Caller):
        answer = await preview(ana, await uploaded(ana), has_header="maybe")
        assert refusal(answer) == (400, "invalid_parameter")

    @pytest.mark.importer(25)
    async def test_file_types_report_their_required_parameters(self, ana: Caller):
        reference = await uploaded(ana, b"a;b\n1;2\n")
        answer = await preview(ana, reference, "delimiter_format")
        assert refusal(answer) == (400, "separator_required")
        assert answer.json()["error"] == "Field separator is required for delimited files."
        assert refusal(await preview(ana, reference, "excel")) == (400, "sheet_required")
        good = await preview(ana, reference, "delimiter_format", field_separator=";")
        assert (good.status_code, names(good.json())) == (200, ["a", "b"])

    @pytest.mark.importer(22)
    async def test_sheet_name_is_ignored_for_text_files(self, ana: Caller):
        assert len((await shown(ana, CONTENT, sheet_name="one"))["columns"]) == 3

    @pytest.mark.importer(16)
    @pytest.mark.parametrize("name", ["field_separator", "quote_char", "sheet_name", "encoding", "file_path"])
    async def test_null_character_is_refused(self, ana: Caller, name):
        answer = await ana.send("GET", f"importer/file/preview/?{name}=%00")
        assert refusal(answer) == (400, "invalid_parameter")

    @pytest.mark.importer(47, 61)
    async def test_failed_preview_keeps_the_file(self, ana: Caller):
        reference = await uploaded(ana)
        for query in ({"quote_char": ","}, {"sql_dialect": "x"}, {"encoding": "x"}, {"file_type": "excel"}):
            assert (await preview(ana, reference, **query)).status_code == 400
            assert (await preview(ana, reference)).status_code == 200
        mismatch = await preview(ana, reference, "excel", sheet_name="one")
        assert refusal(mismatch) == (400, "format_mismatch")
        assert (await preview(ana, reference)).status_code == 200

    async def test_explicit_type_treats_markup_as_text(self, ana: Caller):
        body = await shown(ana, '{"a":1};x\n{"a":2};y\n', "delimiter_format", field_separator=";", has_header="0")
        assert body["preview_data"] == [['{"a":1}', "x"], ['{"a":2}', "y"]]

    @pytest.mark.importer(15)
    @pytest.mark.parametrize("content", [b"\x1f\x8b\x08\0\0\0", b"%PDF-1.7\na,b\n", b"\x00\x01\x02\x03"])
    async def test_other_file_formats_are_refused(self, ana: Caller, content):
        assert refusal(await preview(ana, await uploaded(ana, content))) == (400, "unsupported_format")

    async def test_too_many_columns_are_refused(self, ana: Caller):
        assert len((await shown(ana, b"," * 1999 + b"x\n"))["columns"]) == 2000
        reference = await uploaded(ana, b"," * 2000 + b"x\n")
        assert refusal(await preview(ana, reference)) == (400, "too_many_columns")


def escaped(character: str) -> str:
    """Escape a character as a client does that escapes everything except letters and digits."""
    known = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "'": "\\'", "\\": "\\\\"}
    return known.get(character, f"\\x{ord(character):02x}")


class TestLayout:
    @pytest.mark.importer(69, 70)
    async def test_detected_layout_is_reported_and_can_be_sent_back(self, ana: Caller):
        content = b'Report of 2025\n\n# made by x\nid;note\n1;"a \\"b\\""\n2;c\\;d\n3;e\n4;f\n'
        reference = await uploaded(ana, content)
        metadata = (await guess(ana, reference)).json()
        assert (metadata["type"], metadata["field_separator"]) == ("delimiter_format", ";")
        assert (metadata["skip_rows"], metadata["escape"]) == (3, "\\")
        given = {"field_separator": ";"}
        guessed = await header(ana, reference, "delimiter_format", **given)
        assert (guessed.json()["has_header"], guessed.json()["skip_rows"]) == (True, 3)
        detected = (await preview(ana, reference, "delimiter_format", **given)).json()
        assert detected["preview_data"] == [["1", 'a "b"'], ["2", "c;d"], ["3", "e"], ["4", "f"]]
        assert (detected["skip_rows"], detected["escape"]) == (3, "\\")
        assert warnings(detected) == {"skipped_lines": (3, [1, 2, 3])}
        sent_back = {name: str(metadata[name]) for name in ("skip_rows", "comment", "escape") if name in metadata}
        assert (await preview(ana, reference, "delimiter_format", **given, **sent_back)).json() == detected

    @pytest.mark.importer(71)
    async def test_null_words_are_reported_per_column_and_can_be_specified(self, ana: Caller):
        body = await shown(ana, "code,n\nNA,1\nFR,NA\nDE,3\n")
        assert body["columns"] == [
            {"name": "code", "type": "STRING", "source": 1},
            {"name": "n", "type": "INT", "source": 2, "null_words": ["NA"]},
        ]
        assert warnings(body) == {"null_words": (1, [3])}
        assert types(await shown(ana, "n\n1\nx\n", null_words='["x"]')) == ["INT"]
        assert types(await shown(ana, "n\n1\nNA\n", null_words="[]")) == ["STRING"]

    @pytest.mark.parametrize(
        "given",
        [{"skip_rows": "-1"}, {"skip_rows": "many"}, {"skip_rows": "10001"}, {"comment": "123456789"},
        {"comment": "\\n"}, {"escape": "ab"}, {"null_words": "NA"}, {"null_words": "[1]"}, {"null_words": '{"a": 1}'},
        {"null_words": '["' + "x" * 101 + '"]'}],
    )  # fmt: skip
    async def test_invalid_layout_parameters_are_refused(self, ana: Caller, given):
        status, code = refusal(await preview(ana, await uploaded(ana, b"a,b\n1,2\n"), **given))
        assert (status, code) in {(400, "invalid_parameter"), (400, "invalid_json")}
