"""Real-world files: detection, preview and conversion with the default settings."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from queryserver.formats.arrow import STRING, ColumnType
from queryserver.formats.conversion import RowConverter, TargetColumn
from queryserver.formats.delimited.records import BlockReader
from queryserver.formats.detection import ReadingOptions, TextParameters
from queryserver.formats.layout import count_rows_above
from queryserver.formats.table_files import Delimiters, SkippedLines
from queryserver.imports import computed
from queryserver.imports.model import type_name

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe", " ": "blank"}
FIELD = Path(__file__).parents[2] / "field" / "import"


@dataclass(frozen=True)
class Loaded:
    """The results of guess_metadata, guess_header, preview and create_table for a file. `rows` contains the cells as
    strings.
    """

    metadata: Mapping[str, Any]
    has_header: bool
    preview: Mapping[str, Any]
    rows: Sequence[Sequence[str | None]]
    bad: int

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [(one["name"], type_name(ColumnType(**one["type"]), "duckdb")) for one in self.preview["columns"]]

    @property
    def warnings(self) -> dict[str, tuple[int, list[int]]]:
        return {str(one["code"]): (one["count"], one["rows"]) for one in self.preview["warnings"]}


def load(content: bytes, *, skip_rows: int | None = None, **given: Any) -> Loaded:
    metadata: Any = computed.detect_file({"is_whole": True}, content)
    found = Delimiters(**metadata["delimiters"])
    separators = {
        "field_separator": found.field,
        "quote_char": found.quote or "\\0",
        "record_separator": metadata["record_separator"],
    }
    reading = ReadingOptions.from_parameters(
        metadata["type"], skip_rows=skip_rows, text=TextParameters(**separators | given)
    )
    options = {"reading": asdict(reading), "is_whole": True, "is_last": True}
    header: Any = computed.header(options, content)
    has_header: bool = header["has_header"]
    preview: Any = orjson.loads(orjson.dumps(computed.preview({**options, "has_header": has_header}, content)))
    width = len(preview["columns"])
    reading_as = Delimiters(**preview["delimiters"])
    reader = BlockReader(reading_as, preview["encoding"], width, skipped=SkippedLines(**preview["skipped"]))
    columns = [
        TargetColumn(at, str(at), STRING, null_words=tuple(preview["columns"][at]["null_words"])) for at in range(width)
    ]
    converter = RowConverter(columns, max_explanations=0)
    portions = [converter.block(block, has_header=has_header) for block in (*reader.feed(content), *reader.finish())]
    rows = [list(row.values()) for portion in portions for row in portion.batch.to_pylist()]
    return Loaded(metadata, has_header, preview, rows, sum(portion.bad for portion in portions))


def field_file(name: str) -> bytes:
    return (FIELD / name).read_bytes()


class TestWidth:
    @pytest.mark.importer(62)
    def test_rows_wider_than_their_header_determine_the_columns(self) -> None:
        loaded = load(field_file("header_narrower_than_rows.csv"))
        assert loaded.has_header
        names = ["Division", "Month", "Homicide", "column_4"]
        assert loaded.columns == list(zip(names, ["VARCHAR", "VARCHAR", "INTEGER", "INTEGER"], strict=True))
        assert (loaded.bad, loaded.warnings) == (0, {})
        assert loaded.rows == [["North", "JAN01", str(n), str(n)] for n in range(5)]

    @pytest.mark.importer(62)
    @pytest.mark.parametrize(
        "content",
        [
            field_file("trailing_separator_in_rows.csv"),
            field_file("trailing_separator_in_rows.csv").replace(b",", b"\t"),
            b"a;b;c;\n" + b"".join(b"%d;x;3.5;\n" % n for n in range(5)),
            b"a|b|c|\n" + b"".join(b"%d|x|3.5\n" % n for n in range(5)),
            b"a,b,c,,,\r\n" + b"".join(b"%d,x,3.5, , ,\r\n" % n for n in range(5)),
        ],
    )
    def test_empty_fields_after_the_last_column_are_dropped(self, content: bytes) -> None:
        loaded = load(content)
        assert loaded.columns == [("a", "INTEGER"), ("b", "VARCHAR"), ("c", "DOUBLE")]
        assert (loaded.bad, loaded.warnings) == (0, {})
        assert loaded.rows == [[str(n), "x", "3.5"] for n in range(5)]

    @pytest.mark.importer(62)
    def test_trailing_empty_fields_are_dropped_without_a_header(self) -> None:
        loaded = load(b"1,x,\n2,y,\n3,z,\n")
        assert loaded.columns == [("column_1", "INTEGER"), ("column_2", "VARCHAR")]
        assert loaded.rows == [["1", "x"], ["2", "y"], ["3", "z"]]

    @pytest.mark.importer(62)
    def test_row_with_an_extra_empty_field_is_loaded(self) -> None:
        loaded = load(field_file("one_row_extra_empty_field.csv"))
        assert loaded.columns == [("a", "INTEGER"), ("b", "INTEGER"), ("c", "INTEGER")]
        assert (loaded.bad, loaded.warnings) == (0, {})
        assert loaded.rows == [
            ["1", "2", "3"],
            ["4", "5", "6"],
            ["7", "8", "9"],
            ["10", "11", "12"],
            ["13", "14", "15"],
        ]

    @pytest.mark.importer(62)
    def test_value_after_the_last_column_makes_a_bad_row(self) -> None:
        loaded = load(b"a,b\n1,2,\n3,4,5\n" + b"6,7\n" * 9)
        assert (loaded.bad, loaded.warnings) == (1, {"long_rows": (1, [3])})
        assert loaded.rows == [["1", "2"], *[["6", "7"]] * 9]

    @pytest.mark.importer(62)
    def test_column_filled_only_by_later_rows_is_kept(self) -> None:
        loaded = load(b"a,b\n" + b"1,2,\n" * 100 + b"3,4,5\n")
        assert [name for name, _ in loaded.columns] == ["a", "b", "column_3"]
        assert (loaded.bad, loaded.rows[-1]) == (0, ["3", "4", "5"])

    def test_arrow_drops_trailing_empty_fields_like_the_exact_reader(self) -> None:
        content = b"a,b\n" + b"1,22222222,\n" * 100_000
        reader = BlockReader(Delimiters(), "utf-8", 2)
        blocks = [*reader.feed(content), *reader.finish()]
        assert sum(block.columns.num_rows for block in blocks) == 100_001
        assert not any(block.long_rows for block in blocks)
        assert blocks[-1].columns.column(1)[-1].as_py() == "22222222"


class TestSeparators:
    @pytest.mark.importer(68)
    def test_trailing_separators_do_not_hide_the_separator(self) -> None:
        loaded = load(field_file("trailing_separator_few_rows.csv"))
        assert loaded.metadata["confidence"] == 1.0
        assert loaded.columns == [("a", "INTEGER"), ("b", "INTEGER"), ("c", "INTEGER")]
        assert (loaded.bad, loaded.rows) == (0, [["1", "2", "3"], ["4", "5", "6"]])

    @pytest.mark.importer(68)
    def test_quoted_line_end_after_the_last_field_is_dropped(self) -> None:
        loaded = load(field_file("stray_quote_newline_at_end.csv"))
        assert loaded.metadata["delimiters"]["field"] == ";"
        assert loaded.columns == [("Name", "VARCHAR"), ("Limit", "INTEGER"), ("D", "INTEGER")]
        assert (loaded.bad, loaded.rows) == (0, [["x__m21", "1440", "21"]])

    @pytest.mark.importer(68)
    def test_header_narrower_than_two_rows_does_not_hide_the_separator(self) -> None:
        loaded = load(b"city;day\nRome;2024-01-01;5\nParis;2024-01-02;7\n")
        assert loaded.columns == [("city", "VARCHAR"), ("day", "DATE"), ("column_3", "INTEGER")]


class TestLinesAbove:
    @pytest.mark.importer(69)
    def test_title_line_is_skipped_and_reported(self) -> None:
        loaded = load(field_file("title_line.csv"))
        assert loaded.metadata["delimiters"]["field"] == ";"
        assert loaded.metadata["skipped"] == {"first": 1, "comment": ""}
        assert loaded.has_header
        assert loaded.columns == [("id", "INTEGER"), ("name", "VARCHAR"), ("lat", "DOUBLE")]
        assert loaded.warnings == {"skipped_lines": (1, [1])}
        assert loaded.rows[0] == ["1", "x", "41.9"]
        assert len(loaded.rows) == 5

    @pytest.mark.importer(69)
    def test_world_bank_file_is_read_from_its_header_on(self) -> None:
        loaded = load(field_file("title_lines_world_bank.csv"))
        assert loaded.metadata["skipped"] == {"first": 4, "comment": ""}
        assert loaded.columns == [
            ("Country Name", "VARCHAR"), ("Country Code", "VARCHAR"), ("1960", "DOUBLE"), ("1961", "DOUBLE"),
        ]  # fmt: skip
        assert loaded.warnings == {"skipped_lines": (4, [1, 2, 3, 4])}
        assert (loaded.bad, loaded.rows[-1]) == (0, ["C9", "C09", "9.5", "9.25"])

    @pytest.mark.importer(69)
    def test_line_naming_the_separator_is_skipped(self) -> None:
        loaded = load(field_file("excel_sep_line.csv"))
        assert loaded.metadata["delimiters"]["field"] == ";"
        assert loaded.metadata["skipped"] == {"first": 1, "comment": ""}
        assert loaded.columns == [("id", "INTEGER"), ("name", "VARCHAR"), ("val", "DOUBLE")]
        assert loaded.rows == [["1", "a", "2,5"], ["2", "b", "3,5"]]
        assert load(b"sep=|\na|b,c\n1|2,5\n").columns == [("a", "INTEGER"), ("b,c", "DOUBLE")]

    @pytest.mark.importer(69)
    def test_comment_lines_are_skipped_and_reported(self) -> None:
        loaded = load(field_file("comment_lines.csv"))
        assert loaded.metadata["skipped"] == {"first": 0, "comment": "#"}
        assert loaded.columns == [("id", "INTEGER"), ("val", "INTEGER")]
        assert loaded.warnings == {"skipped_lines": (2, [])}
        assert loaded.rows == [["1", "2"], ["3", "4"]]

    @pytest.mark.importer(69)
    def test_comments_between_rows_are_skipped(self) -> None:
        loaded = load(b'id,val\n1,2\n# a "note"\n3,4\n# "another, of two fields\n5,6\n7,8\n')
        assert (loaded.bad, loaded.warnings) == (0, {"skipped_lines": (2, [])})
        assert loaded.rows == [["1", "2"], ["3", "4"], ["5", "6"], ["7", "8"]]

    @pytest.mark.importer(69)
    @pytest.mark.parametrize(
        ("content", "skipped", "names"),
        [(b"Report,,,\n,,,\nid,name,a,b\n1,x,2,3\n2,y,3,4\n", 2, ["id", "name", "a", "b"]),
        (b"Quarterly report\nAll values in EUR\n\nregion,q1,q2\nNorth,1,2\nSouth,3,4\n", 3, ["region", "q1", "q2"]),
        (b"Liste des clients\nNom;Ville;Pays\nDupont;Paris;France\nRossi;Rome;Italie\n", 1, ["Nom", "Ville", "Pays"]),
        (b"Title: x\tDate: 2024-01-01\n\nid\tname\tn\n1\ta\t2\n2\tb\t3\n", 2, ["id", "name", "n"]),
        (b"\n\nNote\n\nid|n\n1|2\n3|4\n", 4, ["id", "n"]),
        (b"# made by x\n#id\tstart\tend\nchr1\t1\t2\nchr2\t3\t4\n", 1, ["#id", "start", "end"]),
        (b"Report,,\nPrinted,2024-01-31,\n,,\nid,day,n\n1,2024-01-01,5\n2,2024-01-02,6\n", 3, ["id", "day", "n"]),
        (b"Account:,12,,\nFrom:,2024-01-01,,\nStart:,1.5,,\n\nDay,Text,In,Out\n1,x,5,\n2,y,,6\n", 4,
         ["Day", "Text", "In", "Out"])],
    )  # fmt: skip
    def test_titles_notes_and_blank_cells_above_a_table_are_skipped(
        self, content: bytes, skipped: int, names: Sequence[str]
    ) -> None:
        loaded = load(content)
        assert loaded.metadata["skipped"]["first"] == skipped
        assert ([name for name, _ in loaded.columns], len(loaded.rows), loaded.bad) == (names, 2, 0)

    @pytest.mark.importer(69)
    @pytest.mark.parametrize(
        "content",
        [
            b"1\n" * 60 + b"1,2,3\n" * 200,
            b"id,name\n1,a\n2,b\n",
            b"x,,\ny,,\nz,1,2\nw,,\n",
            b"1,2\n3,4,5\n6,7,8\n9,10,11\n",
            b"Division,Month,Homicide\nNorth,JAN01,0,0\nNorth,JAN01,1,1\n",
            b"#1,a,b\n#2,c,d\n#3,e,f\n",
            b"value\n1,5\n2,5\n3,5\n4,5\n5,5\n",
            b"Name,Score,\nAnn,5,\nBob,6,\n\nTeam,Points,Rank\nX,1,2\nY,2,3\n",
            b"id,a,b\n1,,\n\n2,x,5\n3,y,6\n",
            b"name,score,\n,,\nAnn,,\nBob,5,\nCid,6,\n",
            b"item,size\n,\nbolt,M4\nnut,5\nwasher,6\n",
        ],
    )
    def test_possible_data_rows_are_never_skipped(self, content: bytes) -> None:
        assert load(content).metadata["skipped"] == {"first": 0, "comment": ""}

    @pytest.mark.importer(74)
    def test_worksheet_rows_above_a_blank_row_and_a_header_are_skipped(self) -> None:
        rows = [["Report", "", ""], ["Printed", "2024-01-31", ""], ["id", "day", "n"], ["1", "2024-01-01", "5"],
                ["2", "2024-01-02", "6"]]  # fmt: skip
        assert count_rows_above(rows, [0, 1, 3, 4, 5]) == 2
        assert count_rows_above(rows, [0, 1, 2, 3, 4]) == 0

    @pytest.mark.importer(74)
    def test_labels_outnumbering_the_table_rows_are_skipped(self) -> None:
        labels = b"".join(b"Gain%d\t%d\n" % (n, n * 3) for n in range(12))
        rows = b"".join(b"0.%d\t%d\t%d\n" % (n, n, n * 2) for n in range(1, 10))
        loaded = load(labels + b"\nX\tY\tZ\n" + rows)
        assert loaded.metadata["skipped"]["first"] == 13
        assert loaded.columns == [("X", "DOUBLE"), ("Y", "INTEGER"), ("Z", "INTEGER")]
        assert len(loaded.rows) == 9

    @pytest.mark.importer(74)
    @pytest.mark.parametrize(
        "content",
        [
            b"geo,2019,2020\nBelgium,5.4,5.8\nCzechia,2.0,2.6\n\nSource: Eurostat\nExtracted on 05.06.23\n",
            b"Unemployment\n\ngeo,2019,2020\nBelgium,5.4,5.8\nCzechia,2.0,2.6\n\nSource: Eurostat\nprovisional\n",
        ],
    )
    def test_notes_below_a_table_stay_rows_and_do_not_hide_its_separator(self, content: bytes) -> None:
        loaded = load(content)
        assert [name for name, _ in loaded.columns] == ["geo", "2019", "2020"]
        assert [row[0] for row in loaded.rows][:3] == ["Belgium", "Czechia", "Source: Eurostat"]
        assert (len(loaded.rows), loaded.bad) == (4, 0)
        assert loaded.warnings["short_rows"][0] == 2

    @pytest.mark.importer(74)
    def test_prose_with_commas_is_not_a_table(self) -> None:
        assert load(b"Dear Sir, Madam\n\nthank you\nand good bye\n").metadata["delimiters"]["field"] != ","

    @pytest.mark.importer(69)
    def test_comments_are_recognized_in_blank_separated_files(self) -> None:
        loaded = load(b"# made by x\n# ---\n# {name: a, type: int}\na b\n1 2.5\n3 4.5\n")
        assert loaded.columns == [("a", "INTEGER"), ("b", "DOUBLE")]
        assert loaded.metadata["skipped"] == {"first": 0, "comment": "#"}

    @pytest.mark.importer(69)
    def test_skip_rows_and_comment_can_be_specified(self) -> None:
        content = b"a,b\n1,2\n% x\n3,4\n"
        given = load(content, field_separator=",", skip_rows=1, comment="%")
        assert [name for name, _ in given.columns] == ["column_1", "column_2"]
        assert given.rows == [["1", "2"], ["3", "4"]]
        titled = load(field_file("title_line.csv"), skip_rows=0)
        assert titled.rows[:2] == [["Estrazione del 2025-01-06", None, None], ["id", "name", "lat"]]
        assert titled.warnings == {"short_rows": (1, [1])}
        commented = load(field_file("comment_lines.csv"), comment="\\0", skip_rows=0)
        assert len(commented.rows) + commented.has_header == 5


def labels() -> list[dict[str, str]]:
    with (FIELD / "layouts" / "labels.tsv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


class TestLayouts:
    """Files modeled on exports from offices, banks, data loggers and programs, labeled with what a person
    sees in them.
    """

    @pytest.mark.importer(69)
    @pytest.mark.parametrize("label", [*labels()])
    def test_layout_matches_its_label(self, label: Mapping[str, str]) -> None:
        loaded = load(field_file(f"layouts/{label['file']}"))
        names = [name for name, _ in loaded.columns] if loaded.has_header else []
        skipped = loaded.metadata["skipped"]
        found = {
            "file": label["file"],
            "separator": SEPARATORS[loaded.metadata["delimiters"]["field"]],
            "skip_rows": str(skipped["first"]),
            "comment": skipped["comment"],
            "header": "|".join(names),
        }
        assert found == dict(label)
        assert loaded.bad == 0

    def test_every_layout_has_a_label(self) -> None:
        assert {label["file"] for label in labels()} == {one.name for one in (FIELD / "layouts").glob("*.csv")}

    @pytest.mark.importer(68)
    def test_ragged_rows_are_split_if_the_header_names_all_columns(self) -> None:
        loaded = load(field_file("layouts/ragged_rows.csv"))
        assert loaded.metadata["confidence"] < 0.5
        assert loaded.rows[0] == ["1", "x", "y", None]

    @pytest.mark.importer(68)
    def test_apostrophes_within_quoting_apostrophes_do_not_hide_the_separator(self) -> None:
        rows = b"".join(b"%d,'Rome, IT','it, and so on'\n" % n for n in range(20))
        loaded = load(b"id,city,note\n" + rows + b"21,'Oslo, NO','won't, don't'\n")
        assert loaded.metadata["delimiters"]["quote"] == "'"
        assert loaded.rows[0] == ["0", "Rome, IT", "it, and so on"]


class TestEscapes:
    @pytest.mark.importer(70)
    def test_backslashes_before_quotes_and_separators_are_escapes(self) -> None:
        loaded = load(field_file("backslash_escapes.csv"))
        assert loaded.preview["delimiters"]["escape"] == "\\"
        assert loaded.columns == [("id", "INTEGER"), ("name", "VARCHAR"), ("note", "VARCHAR")]
        assert loaded.rows[:2] == [["1", 'say "hi", ok', "x"], ["2", "Fargo, ND", "y"]]
        assert (loaded.bad, loaded.warnings) == (0, {})

    @pytest.mark.importer(70)
    def test_escaped_line_end_is_part_of_its_field(self) -> None:
        loaded = load(b"1\ta\\\tb\tx\n2\ttwo\\\nlines\ty\n3\t\\N\tz\n4\tback\\\\slash\tw\n")
        assert loaded.metadata["delimiters"]["escape"] == "\\"
        assert [row[1] for row in loaded.rows] == ["a\tb", "two\nlines", None, "back\\slash"]

    @pytest.mark.importer(70)
    def test_line_ends_alone_may_be_escaped(self) -> None:
        loaded = load(b"1\ttwo\\\nlines\ty\n2\tb\tz\n3\tc\tw\n4\td\tv\n")
        assert loaded.metadata["delimiters"]["escape"] == "\\"
        assert [row[1] for row in loaded.rows] == ["two\nlines", "b", "c", "d"]
        paths = load(b"id,path\n1,C:\\a\\\n2,C:\\b\\\n3,C:\\c\\\n")
        assert [row[1] for row in paths.rows] == ["C:\\a\\", "C:\\b\\", "C:\\c\\"]

    @pytest.mark.importer(70)
    @pytest.mark.parametrize(
        "content", [b'path,n\n"C:\\dir\\",1\n"D:\\",2\n', b"a,b\n\\N,1\n2,\\N\n", b'j,n\n"{""a"": ""x\\""y""}",1\n']
    )
    def test_other_backslashes_are_not_escapes(self, content: bytes) -> None:
        assert load(content).metadata["delimiters"]["escape"] is None

    @pytest.mark.importer(70)
    def test_escape_can_be_specified_or_disabled(self) -> None:
        assert load(b"a,b\nx^,y,1\n", escape="^").rows == [["x,y", "1"]]
        content = field_file("backslash_escapes.csv")
        assert load(content, escape="\\0").preview["delimiters"]["escape"] is None


class TestNullWords:
    @pytest.mark.importer(71)
    def test_number_columns_with_na_stay_number_columns(self) -> None:
        loaded = load(field_file("na_in_number_columns.csv"))
        assert loaded.has_header
        assert loaded.columns == [("x", "INTEGER"), ("y", "DOUBLE")]
        assert [column["null_words"] for column in loaded.preview["columns"]] == [["NA"], ["NA"]]
        assert loaded.warnings == {"null_words": (2, [3, 4])}
        assert loaded.rows == [["1", "2.5"], [None, "3"], ["4", None]]
        assert loaded.preview["rows"][1] == ["NA", "3"]

    @pytest.mark.importer(71)
    @pytest.mark.parametrize(
        ("cells", "type_", "words"),
        [
            (["1", "N/A", "n/a", "3"], "INTEGER", {"N/A", "n/a"}),
            (["2024-01-01", "-", "2024-01-02"], "DATE", {"-"}),
            (["15/01/2024", "--", "16/01/2024"], "DATE", {"--"}),
            (["1.234,5", "None", "7,5"], "DOUBLE", {"None"}),
            (["true", "#N/A", "false"], "BOOLEAN", {"#N/A"}),
            (["2024-01-01 10:00:00", "nan"], "TIMESTAMP", {"nan"}),
            (["10:30", "..", "11:30"], "TIME", {".."}),
            ([*["1"] * 300, "NA"], "INTEGER", {"NA"}),
            (["FR", "DE", "NA"], "VARCHAR", set()),
            (["NA", "NA", "-"], "VARCHAR", set()),
            (["1", "x", "NA"], "VARCHAR", set()),
            (["NaN", "1"], "DOUBLE", set()),
            (["1", "unbekannt", "3"], "VARCHAR", set()),
        ],
    )
    def test_null_words_are_detected_only_if_they_determine_the_type(
        self, cells: Sequence[str], type_: str, words: set[str]
    ) -> None:
        content = "\n".join(["id;value", *(f"{n};{cell}" for n, cell in enumerate(cells))]).encode()
        loaded = load(content)
        assert loaded.columns[1] == ("value", type_)
        assert set(loaded.preview["columns"][1]["null_words"]) == words
        kept = [None if cell in words else cell for cell in cells]
        assert [row[1] for row in loaded.rows] == kept

    @pytest.mark.importer(71)
    def test_given_null_words_apply_to_every_column_and_disable_detection(self) -> None:
        content = b"code,n\nNA,1\nFR,NA\nDE,x\n"
        given = load(content, null_words=["x", "NA"])
        assert given.columns == [("code", "VARCHAR"), ("n", "INTEGER")]
        assert given.rows == [[None, "1"], ["FR", None], ["DE", None]]
        assert load(content, null_words=[]).rows == [["NA", "1"], ["FR", "NA"], ["DE", "x"]]
        assert load(b"id,n\n1,2\n2,NA\n", null_words=[]).columns == [("id", "INTEGER"), ("n", "VARCHAR")]
