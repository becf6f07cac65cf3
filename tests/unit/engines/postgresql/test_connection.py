"""PostgreSQL values, the text form of nested values, dates of any year, and errors."""

import datetime as dt
import inspect
import struct
from decimal import Decimal

import asyncpg
import pyarrow as pa
import pytest
from asyncpg import exceptions
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import raises_code

from queryserver.engines.postgresql.connection import column_reader
from queryserver.engines.postgresql.errors import connect_errors, replace_cancellation, statement_errors
from queryserver.engines.postgresql.rows import WireRows, wire_batch, wire_format
from queryserver.engines.postgresql.values import (
    DATE_INFINITY,
    TIMESTAMP_INFINITY,
    DeclaredType,
    ValueKind,
    array_literal,
    composite_attributes,
    date_text,
    hstore_pairs,
    numeric_shape,
    timestamp_text,
)
from queryserver.engines.storage_watch import sample_is_full
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    StatementDenied,
    StatementRejected,
)
from queryserver.formats.arrow import ResultType

INTEGER = DeclaredType(ValueKind.NUMBER, ResultType.INT, "integer")
DATE = DeclaredType(ValueKind.DATE, ResultType.DATE, "date")
PRICE = DeclaredType(ValueKind.NUMERIC, ResultType.DECIMAL, "numeric(10,2)", precision=10, scale=2)
NUMBERS = DeclaredType(ValueKind.ARRAY, ResultType.ARRAY, "integer[]", element=INTEGER)
RECORD = DeclaredType(ValueKind.RECORD, ResultType.STRUCT, "record")


def strings(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def days(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32())


def records(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def test_all_null_column_has_declared_type() -> None:
    assert column_reader("a", PRICE).read(strings(None, None)).type == pa.decimal128(10, 2)


def test_infinite_date_is_text_beside_dates_in_any_chunk() -> None:
    reader = column_reader("a", DATE)
    assert reader.read(days(0, DATE_INFINITY, None)).to_pylist() == [dt.date(2000, 1, 1), "infinity", None]
    assert reader.read(days(1)).type == pa.date32()
    assert reader.read(days(-DATE_INFINITY - 1, 1)).to_pylist() == ["-infinity", dt.date(2000, 1, 2)]


def test_later_array_dimension_error_names_column_and_suggests_cast() -> None:
    reader = column_reader("parts", NUMBERS)
    assert reader.read(strings("{1}")).to_pylist() == [[1]]
    with pytest.raises(StatementRejected, match=r'column "parts" .* type integer\[\] .* cast the column to text'):
        reader.read(strings("{{1}}"))


def test_numeric_nan_is_text_beside_decimals() -> None:
    assert column_reader("a", PRICE).read(strings("1.50", "NaN", None)).to_pylist() == [Decimal("1.50"), "NaN", None]
    assert column_reader("a", PRICE).read(strings("1.50")).type == pa.decimal128(10, 2)


def test_first_chunk_decides_array_dimensions() -> None:
    reader = column_reader("a", NUMBERS)
    assert reader.read(strings("{{1,2}}", "{}", None)).to_pylist() == [[[1, 2]], [], None]
    assert reader.read(strings("{{3}}")).type == pa.list_(pa.list_(pa.int32()))
    with pytest.raises(StatementRejected):
        reader.read(strings("{3}"))


def test_arrays_with_mixed_dimensions_are_text() -> None:
    assert column_reader("a", NUMBERS).read(strings("{1}", "{{1}}")).to_pylist() == ["{1}", "{{1}}"]


def record(*fields: tuple[int, bytes | None]) -> bytes:
    """Encode a record in the format of PostgreSQL's `record_send`."""
    written = b"".join(struct.pack("!Ii", oid, -1 if raw is None else len(raw)) + (raw or b"") for oid, raw in fields)
    return struct.pack("!i", len(fields)) + written


def test_anonymous_record_has_numbered_typed_fields() -> None:
    one = record((23, struct.pack("!i", 1)), (25, None), (25, b"x"))
    fields = {"field0": 1, "field1": None, "field2": "x"}
    assert column_reader("a", RECORD).read(records(None, one)).to_pylist() == [None, fields]
    assert column_reader("a", RECORD).read(records(None)).type == pa.string()


def test_records_with_different_fields_are_text() -> None:
    one, other = record((23, struct.pack("!i", 1))), record((25, b"x"), (25, None))
    assert column_reader("a", RECORD).read(records(one, None, other)).to_pylist() == ["(1)", None, "(x,)"]


def test_empty_batch_keeps_duplicate_names_and_types() -> None:
    readers = [column_reader("a", kind) for kind in (INTEGER, DATE)]
    batch = wire_batch(WireRows(), ["a", "a"], [wire_format(23), wire_format(1082)], readers)
    assert batch.schema.names == ["a", "a"]
    assert batch.schema.types == [pa.int32(), pa.date32()]


@pytest.mark.parametrize(
    ("modifier", "shape"), [(655366, (10, 2)), (2490372, (38, 0)), (196612 + 5, (3, 5)), (133118, (2, -6))]
)
def test_numeric_modifier_gives_precision_and_scale(modifier, shape) -> None:
    assert numeric_shape(modifier) == shape


@pytest.mark.parametrize(("text", "expected"),
    [("{}", []), ("{1,2}", ["1", "2"]), ("{NULL,null,NULLS}", [None, None, "NULLS"]),
    ('{"NULL","",a}', ["NULL", "", "a"]), (r'{"a\"b","c\\d",e\,f}', ['a"b', "c\\d", "e,f"]),
    ('{"a,b","{x}"}', ["a,b", "{x}"]), ("{{1,2},{3,4}}", [["1", "2"], ["3", "4"]]), ("[0:1]={5,6}", ["5", "6"]),
    ("[1:1][0:1]={{5,6}}", [["5", "6"]]), ('{"(1,\\"a b\\")"}', ['(1,"a b")'])])  # fmt: skip
def test_array_text_is_parsed(text, expected) -> None:
    assert array_literal(text, ",") == expected


def test_box_arrays_and_hstore_pairs_are_parsed() -> None:
    assert array_literal("{(1,1),(0,0);(3,3),(2,2)}", ";") == ["(1,1),(0,0)", "(3,3),(2,2)"]
    assert hstore_pairs(r'"a"=>"1", "b c"=>NULL, "\"q\""=>"x, y"') == [("a", "1"), ("b c", None), ('"q"', "x, y")]


@pytest.mark.parametrize(("text", "expected"),
    [("()", [None]), ("(,)", [None, None]), ("(1,,x)", ["1", None, "x"]), ('("",a)', ["", "a"]),
    ('("a ""b""","c\\\\d")', ['a "b"', "c\\d"]), ('("{1,""x y""}")', ['{1,"x y"}']),
    ('("(1,""a"")",2)', ['(1,"a")', "2"])])  # fmt: skip
def test_composite_text_is_parsed(text, expected) -> None:
    assert composite_attributes(text) == expected


@given(st.lists(st.none() | st.text(st.characters(exclude_characters="\0")), min_size=1))
def test_quoted_values_round_trip(items) -> None:
    def quoted(null: str, quote: str) -> str:
        texts = [None if item is None else item.replace("\\", "\\\\").replace('"', quote) for item in items]
        return ",".join(null if text is None else f'"{text}"' for text in texts)

    assert array_literal("{" + quoted("NULL", '\\"') + "}", ",") == items
    assert composite_attributes("(" + quoted("", '""') + ")") == items


@pytest.mark.parametrize(("days", "text"),
    [(0, "2000-01-01"), (-1, "1999-12-31"), (DATE_INFINITY, "infinity"), (-DATE_INFINITY - 1, "-infinity"),
    (2_921_939, "9999-12-31"), (2_921_940, "10000-01-01"), (-730_119, "0001-01-01"), (-730_120, "0001-12-31 BC"),
    (-730_485, "0001-01-01 BC"), (-730_486, "0002-12-31 BC")])  # fmt: skip
def test_days_become_date_text_of_any_year(days, text) -> None:
    assert date_text(days) == text


@pytest.mark.parametrize(("microseconds", "text"),
    [(0, "2000-01-01 00:00:00"), (-1, "1999-12-31 23:59:59.999999"), (TIMESTAMP_INFINITY, "infinity"),
    (-TIMESTAMP_INFINITY - 1, "-infinity"), (-730_120 * 86_400_000_000, "0001-12-31 00:00:00 BC")])  # fmt: skip
def test_microseconds_become_timestamp_text_of_any_year(microseconds, text) -> None:
    assert timestamp_text(microseconds) == text


def test_time_zone_is_written_between_time_and_era() -> None:
    assert timestamp_text(500_000, "+00:00") == "2000-01-01 00:00:00.500000+00:00"
    assert timestamp_text(-730_120 * 86_400_000_000, "+00:00") == "0001-12-31 00:00:00+00:00 BC"


DRIVER_CLASSES = sorted(
    {
        member
        for _, member in inspect.getmembers(exceptions, inspect.isclass)
        if issubclass(member, Exception) and not issubclass(member, Warning)
    },
    key=lambda member: member.__name__,
)


def server_error(sqlstate: str, message: str, **fields: str) -> asyncpg.PostgresError:
    return asyncpg.PostgresError.new({"C": sqlstate, "M": message, **fields})


def told(error: Exception, *, started: bool = True) -> EngineError:
    with pytest.raises(EngineError) as caught, statement_errors(started=started):
        raise error
    assert caught.value.__cause__ is error
    return caught.value


def told_on_connect(error: Exception) -> EngineError:
    with pytest.raises(EngineError) as caught, connect_errors():
        raise error
    return caught.value


def test_driver_exception_classes_are_found() -> None:
    assert len(DRIVER_CLASSES) > 200


@pytest.mark.parametrize("kind", DRIVER_CLASSES, ids=lambda kind: kind.__name__)
def test_every_driver_exception_becomes_a_domain_error(kind: type[Exception]) -> None:
    for translated in (told(kind("text")), told(kind("text"), started=False), told_on_connect(kind("text"))):
        assert translated.message.strip()


@pytest.mark.parametrize("kind", [asyncpg.QueryCanceledError, asyncpg.DiskFullError])
def test_canceled_query_or_full_disk_on_sample_is_insufficient_storage(kind: type[Exception]) -> None:
    refused = raises_code("insufficient_storage", match="disk is almost full")
    with refused, replace_cancellation(sample_is_full), statement_errors(started=True):
        raise kind('could not write to file "base/pgsql_tmp/pgsql_tmp42.0"')


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), TimeoutError(), OSError("no route")])
def test_network_error_becomes_a_domain_error(error: Exception) -> None:
    assert isinstance(told(error), OutcomeUnknown)
    assert isinstance(told(error, started=False), SessionLost)
    assert isinstance(told_on_connect(error), EngineUnavailable)


@pytest.mark.parametrize(("sqlstate", "expected"),
    [("57P01", OutcomeUnknown), ("57P02", OutcomeUnknown), ("08006", OutcomeUnknown), ("25P03", EngineTimeout),
    ("57P05", EngineTimeout), ("42P01", StatementRejected), ("28000", StatementRejected),
    ("XX999", StatementRejected)])  # fmt: skip
def test_sqlstate_decides_statement_error(sqlstate: str, expected: type[EngineError]) -> None:
    assert type(told(server_error(sqlstate, "text"))) is expected


@pytest.mark.parametrize(("sqlstate", "expected"),
    [("28P01", CredentialsRequired), ("28000", CredentialsRequired), ("57P03", EngineUnavailable),
    ("53300", EngineUnavailable), ("3D000", StatementRejected), ("42501", StatementRejected)])  # fmt: skip
def test_sqlstate_decides_login_error(sqlstate: str, expected: type[EngineError]) -> None:
    assert type(told_on_connect(server_error(sqlstate, "text"))) is expected


@pytest.mark.security("T23")
def test_client_address_is_removed_from_login_error() -> None:
    text = 'no pg_hba.conf entry for host "10.0.0.7", user "ann", database "shop", no encryption'
    assert told_on_connect(server_error("28000", text)).message == (
        'no pg_hba.conf entry for user "ann", database "shop", no encryption'
    )


def test_only_server_timeouts_are_engine_timeouts() -> None:
    assert type(told(server_error("57014", "canceling statement due to statement timeout"))) is EngineTimeout
    assert type(told(server_error("57014", "canceling statement due to user request"))) is StatementRejected
    assert type(told(server_error("55P03", "canceling statement due to lock timeout"))) is EngineTimeout
    assert type(told(server_error("55P03", "could not obtain lock on row"))) is StatementRejected


def test_closed_connection_is_recognized_by_its_message() -> None:
    closed = asyncpg.InterfaceError("cannot call Connection.fetch(): connection is closed")
    assert type(told(closed)) is OutcomeUnknown
    assert type(told(closed, started=False)) is SessionLost


def test_error_message_has_detail_hint_and_position_but_no_context() -> None:
    error = server_error("42P01", "no such thing", D="more", H="try it", P="8", W="PL/pgSQL function f() line 3")
    assert told(error).message.splitlines() == ["no such thing", "Detail: more", "Hint: try it", "Position: 8"]


def test_missing_privilege_is_statement_denied() -> None:
    denied = told(server_error("42501", "permission denied for table t"))
    assert isinstance(denied, StatementDenied)
    assert not isinstance(told(server_error("42P01", 'relation "t" does not exist')), StatementDenied)
