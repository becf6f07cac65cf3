"""Declared types, put together from what the server sends about a column."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from queryserver.engines.mysql.values import ColumnReader, declare
from queryserver.errors.statements import StatementRejected
from queryserver.formats.columns import ResultType

UTF8MB4, LATIN1, UNKNOWN, BINARY = 45, 8, 2304, 63


def field(code: int, length: int, *, flags: int = 0, charset: int = BINARY, scale: int = 0) -> SimpleNamespace:
    return SimpleNamespace(name="a", type_code=code, length=length, flags=flags, charsetnr=charset, scale=scale)


@pytest.mark.parametrize(
    ("description", "native"),
    [
        (field(253, 80, charset=UTF8MB4), "varchar(20)"),
        (field(253, 20, charset=LATIN1), "varchar(20)"),
        (field(253, 80, charset=UNKNOWN), "varchar(20)"),
        (field(252, 1020, charset=UTF8MB4), "tinytext"),
        (field(252, 262140, charset=UTF8MB4), "text"),
        (field(252, 65535), "blob"),
        (field(252, 4294967295), "longblob"),
        (field(246, 12, scale=2), "decimal(10,2)"),
        (field(246, 11, scale=2, flags=32), "decimal(10,2) unsigned"),
        (field(246, 66), "decimal(65,0)"),
        (field(12, 26, scale=6), "datetime(6)"),
        (field(11, 10), "time"),
        (field(13, 4, flags=96), "year"),
        (field(245, 4294967295), "json"),
        (field(242, 8), "type 242"),
    ],
)
def test_native_types(description, native) -> None:
    assert declare(description).native_type == native


def test_an_unknown_type_is_user_defined_bytes() -> None:
    column = declare(field(242, 8))
    assert (column.result, column.arrow) == (ResultType.USER_DEFINED, pa.binary())


def test_a_zero_date_in_the_first_chunk_makes_the_column_text() -> None:
    reader = ColumnReader(declare(field(10, 10)))
    assert reader.read((b"0000-00-00", None)).to_pylist() == ["0000-00-00", None]
    assert reader.read((b"2024-01-31",)).to_pylist() == ["2024-01-31"]


def test_a_zero_date_later_names_the_column_and_the_cure() -> None:
    reader = ColumnReader(declare(field(10, 10)))
    reader.read((b"2024-01-31",))
    with pytest.raises(StatementRejected, match=r"column `a` .* type date .* cast the column to char"):
        reader.read((b"0000-00-00",))


def test_text_in_another_character_set_is_refused() -> None:
    with pytest.raises(StatementRejected, match="not UTF-8"):
        ColumnReader(declare(field(253, 20, charset=LATIN1))).read((b"\xe9",))
