"""Files as they are found in the field: what detection, preview and conversion make of them with the defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each

from queryserver.formats.conversion import RowConverter, TargetColumn
from queryserver.formats.delimited.records import BlockReader
from queryserver.formats.detection import ReadingOptions
from queryserver.imports import computed
from queryserver.imports.model import STRING, ColumnType, Delimiters, type_name

FIELD = Path(__file__).parents[2] / "field" / "import"


@dataclass(frozen=True)
class Loaded:
    """A file by way of guess_metadata, guess_header, preview and create_table. `rows`: the cells as text."""

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


def load(content: bytes, **given: Any) -> Loaded:
    metadata: Any = computed.detect_file({"is_whole": True}, content)
    found = Delimiters(**metadata["delimiters"])
    reading = ReadingOptions.given(
        metadata["type"],
        **{
            "field_separator": found.field,
            "quote_char": found.quote or "\\0",
            "record_separator": metadata["record_separator"],
        }
        | given,
    )
    options = {"reading": asdict(reading), "is_whole": True, "is_last": True}
    has_header: Any = computed.header(options, content)
    preview: Any = computed.preview({**options, "has_header": has_header}, content)
    width = len(preview["columns"])
    reader = BlockReader(found, preview["encoding"], width)
    converter = RowConverter([TargetColumn(at, str(at), STRING) for at in range(width)], explain=0)
    portions = [converter.block(block, has_header=has_header) for block in (*reader.feed(content), *reader.finish())]
    rows = [list(row.values()) for portion in portions for row in portion.batch.to_pylist()]
    return Loaded(metadata, has_header, preview, rows, sum(portion.bad for portion in portions))


def field_file(name: str) -> bytes:
    return (FIELD / name).read_bytes()


class TestWidth:
    @pytest.mark.importer(62)
    def test_rows_that_are_wider_than_their_header_give_the_columns(self) -> None:
        loaded = load(field_file("header_narrower_than_rows.csv"))
        assert loaded.has_header
        names = ["Division", "Month", "Homicide", "column_4"]
        assert loaded.columns == list(zip(names, ["VARCHAR", "VARCHAR", "INTEGER", "INTEGER"], strict=True))
        assert (loaded.bad, loaded.warnings) == (0, {})
        assert loaded.rows == [["North", "JAN01", str(n), str(n)] for n in range(5)]

    @pytest.mark.importer(62)
    @each(
        "content",
        field_file("trailing_separator_in_rows.csv"),
        field_file("trailing_separator_in_rows.csv").replace(b",", b"\t"),
        b"a;b;c;\n" + b"".join(b"%d;x;3.5;\n" % n for n in range(5)),
        b"a|b|c|\n" + b"".join(b"%d|x|3.5\n" % n for n in range(5)),
        b"a,b,c,,,\r\n" + b"".join(b"%d,x,3.5, , ,\r\n" % n for n in range(5)),
    )
    def test_empty_fields_behind_the_last_column_are_dropped(self, content: bytes) -> None:
        loaded = load(content)
        assert loaded.columns == [("a", "INTEGER"), ("b", "VARCHAR"), ("c", "DOUBLE")]
        assert (loaded.bad, loaded.warnings) == (0, {})
        assert loaded.rows == [[str(n), "x", "3.5"] for n in range(5)]

    @pytest.mark.importer(62)
    def test_without_a_header_empty_fields_at_all_line_ends_are_dropped(self) -> None:
        loaded = load(b"1,x,\n2,y,\n3,z,\n")
        assert loaded.columns == [("column_1", "INTEGER"), ("column_2", "VARCHAR")]
        assert loaded.rows == [["1", "x"], ["2", "y"], ["3", "z"]]

    @pytest.mark.importer(62)
    def test_a_row_with_one_empty_field_too_many_is_loaded(self) -> None:
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
    def test_a_value_behind_the_last_column_makes_a_bad_row(self) -> None:
        loaded = load(b"a,b\n1,2,\n3,4,5\n" + b"6,7\n" * 9)
        assert (loaded.bad, loaded.warnings) == (1, {"long_rows": (1, [3])})
        assert loaded.rows == [["1", "2"], *[["6", "7"]] * 9]

    @pytest.mark.importer(62)
    def test_a_column_that_only_later_rows_fill_is_kept(self) -> None:
        loaded = load(b"a,b\n" + b"1,2,\n" * 100 + b"3,4,5\n")
        assert [name for name, _ in loaded.columns] == ["a", "b", "column_3"]
        assert (loaded.bad, loaded.rows[-1]) == (0, ["3", "4", "5"])

    def test_arrow_reads_empty_fields_at_line_ends_as_the_other_reader_does(self) -> None:
        content = b"a,b\n" + b"1,22222222,\n" * 100_000
        reader = BlockReader(Delimiters(), "utf-8", 2)
        blocks = [*reader.feed(content), *reader.finish()]
        assert sum(block.columns.num_rows for block in blocks) == 100_001
        assert not any(block.long_rows for block in blocks)
        assert blocks[-1].columns.column(1)[-1].as_py() == "22222222"
