"""Import plans, derived from the request (Contract importer 13)."""

import json

import pytest
from tests.refusals import raises_code

from queryserver.formats.arrow import STRING, BaseType, ColumnType
from queryserver.formats.cell_types.analysis import PreviewColumn
from queryserver.formats.cell_types.header import header_names
from queryserver.formats.conversion import TargetColumn
from queryserver.formats.table_files import Delimiters
from queryserver.imports.model import Origin
from queryserver.imports.plans import (
    ColumnRequest,
    FileReading,
    ImportPlan,
    history_text,
    read_plan,
    stored_plan,
    target_columns,
)
from queryserver.sql.classification import changes_data, changes_objects
from queryserver.sql.statements import Script

PREVIEW = [
    PreviewColumn("id", ColumnType(BaseType.INT64)),
    PreviewColumn("2", ColumnType(BaseType.TIME)),
    PreviewColumn("price", ColumnType(BaseType.DECIMAL, 18, 2)),
]


def plan(**changes: object) -> ImportPlan:
    columns = (TargetColumn(0, "id", ColumnType(BaseType.INT64)), TargetColumn(2, 'na"me`', STRING, nullable=False))
    reading = FileReading(Origin.LOCAL, "upload/x/a.csv", True, 3, delimiters=Delimiters("\0", None, "\r"))
    made = ImportPlan("a.csv", reading, columns, ("BIGINT", "TEXT"), None, "t")
    return ImportPlan(**{**{name: getattr(made, name) for name in made.__slots__}, **changes})


@pytest.mark.importer(53)
class TestColumns:
    def test_default_columns_match_the_preview(self):
        columns = target_columns(PREVIEW, None, "postgresql")
        assert [(one.source, one.name, one.type) for one in columns] == [
            (at, one.name, one.type) for at, one in enumerate(PREVIEW)
        ]

    @pytest.mark.importer(67)
    def test_overlong_names_match_the_preview(self):
        long = [PreviewColumn("q" * 80 + number, STRING) for number in ("1", "2")]
        columns = target_columns(long, None, "postgresql")
        assert [one.name for one in columns] == ["q" * 63, "q" * 61 + "_2"]
        asked = [ColumnRequest("q" * 61 + "_2"), ColumnRequest("q" * 80 + "1", name="a")]
        assert [(one.source, one.name) for one in target_columns(long, asked, "postgresql")] == [
            (1, "q" * 61 + "_2"),
            (0, "a"),
        ]
        with raises_code("invalid_columns"):
            target_columns(long, [ColumnRequest(1, name="é" * 32)], "postgresql")
        assert target_columns(long, [ColumnRequest(1, name="é" * 64)], "mysql")[0].name == "é" * 64

    def test_source_is_a_name_or_else_a_position(self):
        asked = [ColumnRequest("2", name="a"), ColumnRequest("3", name="b"), ColumnRequest(1, name="c")]
        assert [one.source for one in target_columns(PREVIEW, asked, "duckdb")] == [1, 2, 0]

    def test_all_preview_names_are_accepted(self):
        shown = [PreviewColumn(name, STRING) for name in header_names(["ß", "ss", "SS", "İ", "K", "\u212a"], 6)]
        assert [one.name for one in target_columns(shown, None, "duckdb")] == [one.name for one in shown]

    @pytest.mark.parametrize("dialect", ["hive", "sparksql", "trino", "sqlite"])
    def test_times_stay_text_without_a_time_type(self, dialect: str):
        assert target_columns(PREVIEW, [ColumnRequest(2)], dialect)[0].type == STRING

    @pytest.mark.importer(71)
    def test_detected_null_words_apply_unless_the_column_becomes_text(self):
        found = [PreviewColumn("n", ColumnType(BaseType.INT64), None, ("NA",)), PreviewColumn("t", STRING)]
        assert [column.null_words for column in target_columns(found, None, "duckdb")] == [("NA",), ()]
        as_text = [ColumnRequest(1, type="VARCHAR"), ColumnRequest(2, null_words=("-",))]
        assert [column.null_words for column in target_columns(found, as_text, "duckdb")] == [(), ("-",)]
        given = target_columns(found, as_text[:1], "duckdb", null_words=("x",))
        assert given[0].null_words == ("x",)
        none = target_columns(found, [ColumnRequest(1, null_words=())], "duckdb")
        assert none[0].null_words == ()

    def test_chosen_type_applies_with_its_precision(self):
        asked = [ColumnRequest(1, type="decimal", precision=10, scale=3), ColumnRequest(2, type="VARCHAR")]
        types = [one.type for one in target_columns(PREVIEW, asked, "duckdb")]
        assert types == [ColumnType(BaseType.DECIMAL, 10, 3), STRING]

    def test_scale_of_a_detected_decimal_may_change(self):
        found = [
            PreviewColumn("a", ColumnType(BaseType.DECIMAL, 20, 0)),
            PreviewColumn("b", ColumnType(BaseType.INT32)),
        ]
        asked = [ColumnRequest(1, type="numeric", precision=20, scale=5), ColumnRequest(2, type="integer", scale=2)]
        types = [one.type for one in target_columns(found, asked, "postgresql")]
        assert types == [ColumnType(BaseType.DECIMAL, 20, 5), ColumnType(BaseType.INT32)]
        for precision in (20, None):
            with raises_code("invalid_columns"):
                target_columns(found, [ColumnRequest(1, type="NUMERIC", precision=precision, scale=21)], "postgresql")

    @pytest.mark.parametrize("asked",
            [[], [ColumnRequest(0)], [ColumnRequest(4)], [ColumnRequest("x")], [ColumnRequest(1, name="")],
            [ColumnRequest(1, name="a\0")], [ColumnRequest(1, name="x" * 256)],
            [ColumnRequest(1), ColumnRequest(2, name="ID")],
            [ColumnRequest(1, type="BLOB")], [ColumnRequest(1, type="DECIMAL")],
            [ColumnRequest(1, type="DECIMAL", precision=0)], [ColumnRequest(1, type="DECIMAL", precision=5, scale=6)],
            [ColumnRequest(1, type="DECIMAL", precision=5, scale=-1)], [ColumnRequest("9" * 5000)]])  # fmt: skip
    def test_invalid_columns_are_rejected(self, asked: list[ColumnRequest]):
        with raises_code("invalid_columns"):
            target_columns(PREVIEW, asked, "duckdb")


def test_stored_plan_round_trips_without_nul() -> None:
    record = json.dumps(stored_plan(plan(max_bad_rows=None)))
    assert read_plan(json.loads(record)) == plan(max_bad_rows=None)
    assert "\\u0000" not in json.dumps(json.loads(record)).replace("\\\\u0000", "")


@pytest.mark.importer(57)
@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "duckdb", "sqlite", "hive", "sparksql", "trino", "phoenix"])
def test_history_text_is_one_create_table_statement(dialect: str) -> None:
    odd = "a\r\nb\u2028; DROP TABLE x; */ -- .csv"
    text = history_text(plan(shown=odd, table="t;'\"`\\", database="d"), dialect)
    assert len(Script(text, dialect)) == 1
    assert changes_data(text, dialect)
    assert changes_objects(text, dialect)
    assert text.splitlines()[0].startswith("-- Import of a")
    assert text.splitlines()[1].startswith("CREATE TABLE ")


def test_many_columns_are_abbreviated_in_the_history() -> None:
    columns = tuple(TargetColumn(0, f"c{n}", STRING) for n in range(150))
    text = history_text(plan(columns=columns, declared=("TEXT",) * 150), "duckdb")
    assert "-- and 50 more columns" in text
