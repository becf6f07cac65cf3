"""Positions in engine error messages, and size limits of row batches and response bodies."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import asyncpg
import httpx
import pyarrow as pa
import pytest
from asyncmy.errors import ProgrammingError

from queryserver.engines.engine_messages import (
    ANY,
    HIVE,
    IMPALA,
    LABELED_POSITIONS,
    NEAR_POSITIONS,
    PHOENIX,
    SPARK,
    find_location,
)
from queryserver.engines.hiveserver2.errors import Purpose, domain_error
from queryserver.engines.mysql.connection import statement_errors as mysql_errors
from queryserver.engines.phoenix import connection as phoenix_http
from queryserver.engines.phoenix.connection import Route
from queryserver.engines.phoenix.protocol import Phase, ServerError, avatica_errors
from queryserver.engines.postgresql.errors import statement_errors as postgresql_errors
from queryserver.engines.record_batches import BATCH_BYTES, ChunkSize, slice_batch
from queryserver.engines.sqlalchemy.connection import SqlalchemyAnswer
from queryserver.engines.trino import coordinator as trino_http
from queryserver.engines.trino.protocol import engine_error
from queryserver.errors.statements import EngineError, RowTooLarge
from queryserver.platform.addresses import AddressRules
from queryserver.sql.positions import Position, position_of

SPARK_SYNTAX = """[PARSE_SYNTAX_ERROR] Syntax error at or near ')'. SQLSTATE: 42601 (line 2, pos 8)

== SQL ==
SELECT '😀é' AS a,
 1 AS b )
--------^^^
"""
LONG = "SELECT " + ", ".join(f"c{number}" for number in range(40)) + " FORM t"
CUT = f"...{LONG[-28:]}"
"""If a line has more than 60 characters, Impala prints only about 27 characters on each side of the error."""


@pytest.mark.parametrize(
    ("readings", "statement", "text", "position"),
    [
        (
            LABELED_POSITIONS,
            "SELCT 1",
            'Parser Error: syntax error at or near "SELCT"\n\nLINE 1: SELCT 1\n        ^^^^^',
            (1, 1),
        ),
        (LABELED_POSITIONS, "SELECT 1", "Out of Memory Error: failed to pin block", None),
        (
            NEAR_POSITIONS,
            "SELECT 1,\n2 FORM t",
            "You have an error in your SQL syntax; check the manual … to use near 't' at line 2",
            (2, 8),
        ),
        (NEAR_POSITIONS, "SELECT (\n", "You have an error … for the right syntax to use near '' at line 2", (2, 1)),
        (NEAR_POSITIONS, "SELECT 'near ' x", "… to use near 'near ' x' at line 1", (1, 9)),
        (NEAR_POSITIONS, "SELECT a", "Unknown column 'a' in 'field list'", None),
        (HIVE, "SELCT 1", "Error while compiling statement: FAILED: ParseException line 1:0 cannot recognize", (1, 1)),
        (
            HIVE,
            "SELECT *\nFROM nope",
            "FAILED: SemanticException [Error 10001]: Line 2:5 Table not found 'nope'",
            (2, 6),
        ),
        (SPARK, "SELECT '😀é' AS a,\n 1 AS b )", SPARK_SYNTAX, (2, 9)),
        (SPARK, "SELECT nope", "[UNRESOLVED_COLUMN] A column cannot be resolved.; line 1 pos 7;\n'Project", (1, 8)),
        (SPARK, "SELECT 1/0", "[DIVIDE_BY_ZERO] Division by zero.\n== SQL (line 1, position 8) ==\nSELECT 1/0", (1, 8)),
        (
            IMPALA,
            "SELECT 1,\nFORM t",
            "ParseException: Syntax error in line 2:\nFORM t\n     ^\nEncountered: IDENTIFIER\nExpected: FROM",
            (2, 6),
        ),
        (
            IMPALA,
            LONG,
            f"ParseException: Syntax error in line 1:\n{CUT}\n{' ' * CUT.index('FORM')}^\nEncountered: IDENTIFIER",
            (1, LONG.index("FORM") + 1),
        ),
        (IMPALA, "", "ParseException: Syntax error in line 1:\n\n^\nEncountered: EOF", (1, 1)),
        (IMPALA, "SELECT a", "AnalysisException: Could not resolve column/field reference: 'a'", None),
        (PHOENIX, "SELCT 1", 'ERROR 601 (42P00): Syntax error. Encountered "SELCT" at line 1, column 1.', (1, 1)),
        (ANY, "SELECT 1\nFORM t", "Syntax error: failed at position 10 ('FORM') (line 2, col 1): FORM t", (2, 1)),
        (ANY, "SELECT 1 FORM", "SQL compilation error: syntax error line 1 at position 9 unexpected 'FORM'.", (1, 10)),
        (ANY, "SELCT 1", "line 1:1: mismatched input 'SELCT'. Expecting: 'SELECT'", (1, 1)),
        (ANY, "SELECT", "ORA-00936: missing expression", None),
    ],
)
def test_error_position_is_read_from_engine_message(
    readings: object, statement: str, text: str, position: tuple[int, int] | None
):
    found = position_of(find_location(text, readings), statement)  # type: ignore[arg-type]
    assert found == (None if position is None else Position(*position))


class TestAdapters:
    @pytest.mark.parametrize(("given", "position"), [("10", Position(2, 1)), (None, None)])
    def test_postgresql_position_counts_characters(self, given: str | None, position: Position | None):
        with pytest.raises(EngineError) as caught, postgresql_errors(started=False):
            raise asyncpg.PostgresError.new({"C": "42601", "M": "syntax error", **({"P": given} if given else {})})
        assert position_of(caught.value.location, "SELECT é\nFORM t") == position

    def test_mysql_error_has_its_position(self):
        with pytest.raises(EngineError) as caught, mysql_errors(started=True):
            raise ProgrammingError(1064, "You have an error in your SQL syntax; … near 'FORM t' at line 1")
        assert position_of(caught.value.location, "SELECT 1 FORM t") == Position(1, 10)

    def test_trino_error_has_its_position(self):
        location = {"lineNumber": 2, "columnNumber": 3}
        error = engine_error({"errorName": "SYNTAX_ERROR", "message": "line 2:3: …", "errorLocation": location})
        assert position_of(error.location, "SELECT\n  FORM") == Position(2, 3)
        for odd in (None, {}, {"lineNumber": 0, "columnNumber": 1}, {"lineNumber": "1", "columnNumber": 1}, []):
            assert engine_error({"errorName": "X", "message": "m", "errorLocation": odd}).location is None

    def test_hiveserver2_error_has_its_position(self):
        error = domain_error("FAILED: ParseException line 1:7 extraneous input", Purpose.FOLLOW)
        assert position_of(error.location, "SELECT FORM") == Position(1, 8)

    def test_phoenix_error_has_its_position(self):
        trace = "java.sql.SQLException: ERROR 604 (42P00): Syntax error. Mismatched input. … at line 1, column 8."
        with pytest.raises(EngineError) as caught, avatica_errors(Phase.SENT):
            raise ServerError("", (trace,))
        assert position_of(caught.value.location, "SELECT FORM") == Position(1, 8)


def test_long_messages_are_parsed_in_linear_time():
    for text in ("near '" * 100_000, "LINE 1: " * 100_000, "error in line 1:\n" * 50_000, "line 1:" * 100_000):
        for readings in (ANY, HIVE, SPARK, IMPALA, PHOENIX):
            find_location(text, readings)


def batch(rows: int, width: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(["x" * width] * rows, pa.string())], names=["a"])


@pytest.mark.parametrize("width", [1, 1000, 100_000, 10_000_000])
def test_chunk_size_settles_at_target_bytes(width) -> None:
    size = ChunkSize()
    for _ in range(10):
        size.adapt(batch(min(size.rows, 2), width))
    assert size.rows == 10_000 or size.rows == 1 or 0.5 * BATCH_BYTES < size.rows * width <= BATCH_BYTES


def test_chunk_size_grows_gradually() -> None:
    size = ChunkSize()
    first = size.rows
    size.adapt(batch(1, 1))
    assert first < size.rows <= 10 * first


def test_empty_batch_keeps_chunk_size_positive() -> None:
    size = ChunkSize()
    size.adapt(batch(0, 1))
    assert size.rows >= 1


def test_large_batch_is_split_in_order() -> None:
    whole = batch(50, 1_000_000)
    cut = list(slice_batch(whole))
    assert max(piece.num_rows for piece in cut) <= 5
    assert pa.Table.from_batches(cut).equals(pa.Table.from_batches([whole]))


def test_small_batch_is_not_split() -> None:
    assert [piece.num_rows for piece in slice_batch(batch(50, 10))] == [50]


MIB = 1024 * 1024


class Endless(httpx.AsyncByteStream):
    """An endless response body that counts the chunks read from it."""

    slice_batch = 0
    is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.slice_batch += 1
            yield bytes(MIB)

    async def aclose(self) -> None:
        self.is_closed = True


async def test_trino_page_is_read_only_up_to_its_limit() -> None:
    body = Endless()
    request = httpx.Request("GET", "http://trino/v1/statement")
    with pytest.raises(RowTooLarge):
        await trino_http._whole(httpx.Response(200, stream=body, request=request), request, 16 * MIB)
    assert (body.slice_batch, body.is_closed) == (65, True)


async def test_phoenix_frame_is_read_only_up_to_its_limit() -> None:
    body = Endless()
    request = httpx.Request("POST", "http://phoenix/")
    with pytest.raises(RowTooLarge):
        await phoenix_http._whole(httpx.Response(200, stream=body, request=request), Route("::1", None), 8 * MIB)
    assert (body.slice_batch, body.is_closed) == (9, True)


class Cursor:
    """A DBAPI cursor whose rows have the given widths."""

    def __init__(self, widths: Sequence[int]) -> None:
        self._widths = list(widths)
        self.largest = 0

    def fetchmany(self, count: int) -> list[tuple[str]]:
        taken, self._widths = self._widths[:count], self._widths[count:]
        self.largest = max(self.largest, sum(taken))
        return [("x" * width,) for width in taken]


class Dialect:
    """A SQLAlchemy dialect that has only a name."""

    name = "any"


class Connection:
    """A SQLAlchemy connection that must not be used."""

    dialect = Dialect()


@pytest.mark.parametrize(
    ("widths", "most_bytes"),
    [
        ([10] * 1000, BATCH_BYTES),
        ([10 * MIB] * 8, 10 * MIB),
        # The first wide row arrives in a fetch of sixteen rows; later fetches are smaller.
        ([10] * 127 + [2 * MIB] * 100, 32 * MIB),
        ([3 * MIB] + [10] * 500, BATCH_BYTES),
    ],
)
def test_cursor_chunks_shrink_when_rows_become_wide(widths: list[int], most_bytes: int) -> None:
    answer = SqlalchemyAnswer(cast("Any", Connection()), cast("Any", None), AddressRules())
    cursor = answer.cursor = Cursor(widths)
    seen: list[int] = []
    while rows := answer._fetched():
        seen += [len(text) for (text,) in rows]
    assert seen == widths
    assert cursor.largest <= most_bytes
