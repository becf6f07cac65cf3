r"""String literals for Hive and Spark: correctly terminated, free of variable substitution, and read back unchanged.

Both engines read `\u` followed by four hexadecimal digits as one UTF-16 code unit.
"""

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.loading_facts import TEXTS

from queryserver.engines.hiveserver2.loader import (
    HIVE_LOADING,
    SPARK_LOADING,
    Hs2Loader,
    LoaderDialect,
    spark_string_literal,
    string_literal,
)
from queryserver.engines.protocol import LoadColumn, TableLoad, TableName
from queryserver.errors.statements import StatementRejected
from queryserver.formats.arrow import BaseType, ColumnType

PLAIN = re.compile(r"'((?:[^'\\$\x00-\x1f\x7f]|\\u[0-9a-f]{4})*)'")
"""A literal that ends only at its last quote, and contains no `$` that could start a variable."""
HEX = re.compile(r"CAST\(X'((?:[0-9a-f]{2})*)' AS STRING\)")

BOTH = pytest.mark.parametrize("write", [string_literal, spark_string_literal])
DIALECTS = pytest.mark.parametrize("dialect", [HIVE_LOADING, SPARK_LOADING])
STRING, INT64 = ColumnType(BaseType.STRING), ColumnType(BaseType.INT64)


def read(written: str) -> str:
    """Return the string that an engine reads from a literal."""
    if as_hex := HEX.fullmatch(written):
        return bytes.fromhex(as_hex[1]).decode()
    plain = PLAIN.fullmatch(written)
    assert plain, written[:200]
    return re.sub(r"\\u([0-9a-f]{4})", lambda escape: chr(int(escape[1], 16)), plain[1])


def loader_of(dialect: LoaderDialect) -> Hs2Loader:
    """Return a loader for tests that use no engine."""
    return Hs2Loader(None, None, dialect, "default", read_only=False)  # type: ignore[arg-type]


def load_of(*columns: str, table: str = "t") -> TableLoad:
    return TableLoad(
        TableName(None, table), TableName(None, "_qs_import_1"), tuple(LoadColumn(n, STRING, "STRING") for n in columns)
    )


@pytest.mark.importer(57)
@pytest.mark.security("T23")
@BOTH
@pytest.mark.parametrize(
    "text",
        [*TEXTS,
        "${hiveconf:x}", "${env:HOME}", "${system:user.home}", "$", "$$", "\0", "\0\0a", "\x1a",
        "\\u0027", "\\'", "\\\\'", "'" * 3, "\\" * 3, "x'; SET x=y; --", "\u2019", "\uff07", "\U0001f418",
        "\ud7ff\ue000\U0010ffff", "\x85\xa0\u2029"],
)  # fmt: skip
def test_hostile_text_round_trips_as_constant(write, text) -> None:
    assert read(write(text)) == text


@BOTH
@given(st.text(st.characters(exclude_categories=("Cs",))) | st.text("\\'$\0\n{}u027\"`;-"))
def test_arbitrary_text_round_trips_as_constant(write, text) -> None:
    assert read(write(text)) == text


@BOTH
def test_none_becomes_null_while_the_word_null_stays_text(write) -> None:
    assert write(None) == "NULL"
    assert write("NULL") == "'NULL'"
    assert write("") == "''"


@BOTH
@pytest.mark.parametrize("letter", ["a", "é", "'", "\\", "\0", "\n", "${"])
def test_very_long_text_round_trips_as_constant(write, letter) -> None:
    text = letter * 300_000
    assert read(write(text)) == text


def test_spark_gets_long_text_with_many_escapes_as_hex() -> None:
    """Spark's parser scans all of the remaining text at each escape, so parsing many escapes takes quadratic time."""
    assert HEX.fullmatch(spark_string_literal("'" * 100_000))
    assert PLAIN.fullmatch(spark_string_literal("a" * 100_000))
    assert PLAIN.fullmatch(spark_string_literal("it's"))


@pytest.mark.importer(57)
@DIALECTS
def test_hostile_cells_become_constants(dialect) -> None:
    texts = ["'); DROP TABLE x; --", "\\", None, "${x}"]
    batch = pa.RecordBatch.from_arrays([pa.array([text], pa.string()) for text in texts], names=list("abcd"))
    load = load_of(*"abcd")
    (row,) = loader_of(dialect).writer(load.columns, ["STRING"] * 4)(batch)
    assert row.decode() == r"'\u0027); DROP TABLE x; --', '\u005c', NULL, '\u0024{x}'"


def test_insert_casts_constants_to_column_types() -> None:
    load = TableLoad(
        TableName("d", "t"),
        TableName("d", "_qs_import_1"),
        (LoadColumn("a`b", INT64, "BIGINT"), LoadColumn("s", STRING, "STRING")),
    )
    rows = [b"'1', 'x'", b"NULL, '{}'"]
    casts = "INSERT INTO `d`.`_qs_import_1` SELECT CAST(c0 AS BIGINT), CAST(c1 AS STRING) FROM "
    values = "(VALUES ('1', 'x'), (NULL, '{}'))"
    types = ["BIGINT", "STRING"]
    assert loader_of(SPARK_LOADING).insert(load, types, rows) == f"{casts}{values} AS v (c0, c1)"
    assert loader_of(HIVE_LOADING).insert(load, types, rows) == f"{casts}TABLE{values} AS v (c0, c1)"


@DIALECTS
@pytest.mark.parametrize("name", ["with blank", "a.b", "é", "", "x`y", "x; DROP", "a" * 129])
def test_invalid_table_name_is_refused(dialect, name) -> None:
    with pytest.raises(StatementRejected, match="name"):
        loader_of(dialect).check_names(load_of("a", table=name))


@DIALECTS
@pytest.mark.parametrize("name", ["${env:HOME}", "a,b", "a" * 129])
def test_column_name_that_cannot_be_quoted_is_refused(dialect, name) -> None:
    with pytest.raises(StatementRejected, match="name"):
        loader_of(dialect).check_names(load_of(name))
    loader_of(dialect).check_names(load_of("with blank", "it's", "back`tick", "$1", "Zoë", "a" * 128))
