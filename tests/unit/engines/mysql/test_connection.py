"""MySQL and MariaDB: declared types, histograms, value lengths and errors."""

import inspect
import json
from types import SimpleNamespace

import pyarrow as pa
import pytest
from asyncmy import errors as driver

from queryserver.engines.mysql.catalog import read_histogram
from queryserver.engines.mysql.connection import connect_errors, statement_errors
from queryserver.engines.mysql.values import column_reader, declare, long_text_value
from queryserver.engines.protocol import ColumnStatistics
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

UTF8MB4, LATIN1, UNKNOWN, BINARY = 45, 8, 2304, 63


def field(code: int, length: int, *, flags: int = 0, charset: int = BINARY, scale: int = 0) -> SimpleNamespace:
    return SimpleNamespace(name="a", type_code=code, length=length, flags=flags, charsetnr=charset, scale=scale)


@pytest.mark.parametrize(("description", "native"),
    [(field(253, 80, charset=UTF8MB4), "varchar(20)"), (field(253, 20, charset=LATIN1), "varchar(20)"),
    (field(253, 80, charset=UNKNOWN), "varchar(20)"), (field(252, 1020, charset=UTF8MB4), "tinytext"),
    (field(252, 262140, charset=UTF8MB4), "text"), (field(252, 65535), "blob"), (field(252, 4294967295), "longblob"),
    (field(246, 12, scale=2), "decimal(10,2)"), (field(246, 11, scale=2, flags=32), "decimal(10,2) unsigned"),
    (field(246, 66), "decimal(65,0)"), (field(12, 26, scale=6), "datetime(6)"), (field(11, 10), "time"),
    (field(13, 4, flags=96), "year"), (field(245, 4294967295), "json"), (field(242, 8), "type 242")])  # fmt: skip
def test_native_type_names_include_length_and_scale(description, native) -> None:
    assert declare(description).column.native_type == native


def test_unknown_type_is_user_defined_bytes() -> None:
    column = declare(field(242, 8))
    assert (column.column.type, column.arrow) == (ResultType.USER_DEFINED, pa.binary())


def test_zero_date_in_first_chunk_makes_column_text() -> None:
    reader = column_reader(declare(field(10, 10)))
    assert reader.read((b"0000-00-00", None)).to_pylist() == ["0000-00-00", None]
    assert reader.read((b"2024-01-31",)).to_pylist() == ["2024-01-31"]


def test_later_zero_date_error_names_column_and_suggests_cast() -> None:
    reader = column_reader(declare(field(10, 10)))
    reader.read((b"2024-01-31",))
    with pytest.raises(StatementRejected, match=r"column `a` .* type date .* cast the column to char"):
        reader.read((b"0000-00-00",))


def test_non_utf8_text_is_refused() -> None:
    with pytest.raises(StatementRejected, match="not UTF-8"):
        column_reader(declare(field(253, 20, charset=LATIN1))).read((b"\xe9",))


@pytest.mark.item(65)
def test_singleton_histogram_counts_one_value_per_bucket() -> None:
    histogram = {
        "buckets": [[1, 0.25], [3, 0.5], [7, 0.75]],
        "data-type": "int",
        "null-values": 0.25,
        "histogram-type": "singleton",
    }
    assert read_histogram(json.dumps(histogram), 8) == ColumnStatistics(min="1", max="7", num_nulls=2, distinct_count=3)


@pytest.mark.item(65)
def test_equi_height_histogram_has_bounds_and_counts() -> None:
    histogram = {
        "buckets": [
            ["base64:type254:QWE=", "base64:type254:Qmg=", 0.5, 10],
            ["base64:type254:Qmk=", "base64:type254:Wno=", 1.0, 12],
        ],
        "data-type": "string",
        "null-values": 0.0,
        "histogram-type": "equi-height",
    }
    assert read_histogram(json.dumps(histogram), None) == ColumnStatistics(min="Aa", max="Zz", distinct_count=22)


@pytest.mark.item(65)
def test_all_null_column_has_no_bounds() -> None:
    histogram = {"buckets": [], "data-type": "int", "null-values": 1.0, "histogram-type": "singleton"}
    assert read_histogram(json.dumps(histogram), 4) == ColumnStatistics(num_nulls=4, distinct_count=0)


LONG = b"\xfe" + (500_000_000).to_bytes(8, "little")


@pytest.mark.parametrize(("row", "number"),
    [(LONG, 0), (LONG + b"xxxx", 0), (b"\x03abc" + LONG, 1), (b"\xfb\xfc\x04\x00abcd" + LONG, 2),
    (b"\xfd\xff\xff\x0f", None), (b"\xfd\x01\x00\x10", 0), (LONG[:5], None), (b"\x09abc", None),
    (b"", None)])  # fmt: skip
def test_first_overlong_value_is_found(row: bytes, number: int | None) -> None:
    assert long_text_value(row, 0xFFFFF) == number


DRIVER_CLASSES = [
    member for _, member in inspect.getmembers(driver, inspect.isclass) if issubclass(member, driver.MySQLError)
]


def told(error: Exception, *, started: bool = True) -> EngineError:
    with pytest.raises(EngineError) as caught, statement_errors(started=started):
        raise error
    return caught.value


def told_on_connect(error: Exception) -> EngineError:
    with pytest.raises(EngineError) as caught, connect_errors():
        raise error
    return caught.value


@pytest.mark.parametrize("kind", DRIVER_CLASSES, ids=lambda kind: kind.__name__)
def test_every_driver_exception_becomes_a_domain_error(kind: type[Exception]) -> None:
    assert len(DRIVER_CLASSES) == 11
    for error in (kind(), kind(1064, "text"), kind("text")):
        for translated in (told(error), told(error, started=False), told_on_connect(error)):
            assert translated.message.strip()


@pytest.mark.parametrize(("number", "expected"),
    [(1146, StatementRejected), (1317, StatementRejected), (1969, EngineTimeout), (3024, EngineTimeout),
    (1205, EngineTimeout), (1053, OutcomeUnknown), (1927, OutcomeUnknown), (2013, OutcomeUnknown),
    (2006, OutcomeUnknown), (0, OutcomeUnknown)])  # fmt: skip
def test_server_error_number_decides_statement_error(number: int, expected: type[EngineError]) -> None:
    assert type(told(driver.OperationalError(number, "text"))) is expected


@pytest.mark.parametrize(("number", "expected"),
    [(1045, CredentialsRequired), (1698, CredentialsRequired), (2059, CredentialsRequired), (1049, StatementRejected),
    (1040, EngineUnavailable), (2003, EngineUnavailable)])  # fmt: skip
def test_server_error_number_decides_login_error(number: int, expected: type[EngineError]) -> None:
    assert type(told_on_connect(driver.OperationalError(number, "text"))) is expected


def test_connection_lost_before_a_statement_raises_session_lost() -> None:
    assert type(told(driver.InterfaceError(0, "Not connected"), started=False)) is SessionLost


@pytest.mark.security("T23")
def test_client_address_is_removed_from_login_error() -> None:
    error = driver.OperationalError(1045, "Access denied for user 'ann'@'10.0.0.7' (using password: YES)")
    assert told_on_connect(error).message == "Access denied for user 'ann' (using password: YES)"


def test_server_that_requires_tls_is_unavailable_with_its_message() -> None:
    error = told_on_connect(driver.OperationalError(3159, "Connections using insecure transport are prohibited"))
    assert isinstance(error, EngineUnavailable)
    assert "insecure transport" in error.message


def test_server_request_for_local_file_is_refused() -> None:
    assert "LOAD DATA LOCAL" in told(RuntimeError("**WARN**: Received LOAD_LOCAL packet")).message


@pytest.mark.parametrize("number", [1044, 1142, 1143, 1227, 1370])
def test_missing_privilege_is_statement_denied(number: int) -> None:
    assert isinstance(told(driver.OperationalError(number, "SELECT command denied to user 'a'@'b'")), StatementDenied)
    assert not isinstance(told(driver.ProgrammingError(1146, "Table 'd.t' doesn't exist")), StatementDenied)
