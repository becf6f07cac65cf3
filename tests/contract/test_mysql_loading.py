"""The loader contract for tables in MariaDB."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import ClassVar

import pyarrow as pa
import pytest
from tests.contract.loading_basis import MemoryLedger, numbered
from tests.contract.loading_contract import LoadingContract
from tests.contract.loading_facts import INF, NAMES, NAN, TEXTS, LoadingFacts
from tests.contract.mariadb_basis import MariadbBasis
from tests.contract.test_mysql_engine import engine_on
from tests.engines.servers import ServerAddress

from queryserver.engines.catalog_queries import backquoted
from queryserver.engines.mysql.loader import RowWriter
from queryserver.engines.protocol import Engine, TableLoader, TableName
from queryserver.errors.statements import EngineError, StatementRejected
from queryserver.formats.arrow import BaseType

FACTS = LoadingFacts(
    dialect="mysql",
    quoted=backquoted,
    create_n_sql="CREATE TABLE {t} (n BIGINT)",
    database="other database",
    database_sql=("CREATE DATABASE IF NOT EXISTS {d}",),
    values={
        # The server prints a FLOAT with six digits and converts -0 to 0.
        BaseType.FLOAT32: (0.0, 1.5, -0.25, 1234.5),
        BaseType.FLOAT64: (0.0, 0.1, 1.7976931348623157e308, 2.2250738585072014e-308, 123456789012345.67),
        BaseType.STRING: (*TEXTS, "nul\0here", "\x1a"),
    },
    refused=(
        (BaseType.FLOAT64, NAN, "NaN"),
        (BaseType.FLOAT32, INF, "infinity"),
        (BaseType.STRING, "x" * 65_536, "too long"),
    ),
    names=NAMES,
    refused_names=("elephant 🐘", "ends with a blank "),
    longest_name=64,
    long_text=65_535,
)


@pytest.mark.engine("mariadb")
class TestMariadbLoading(MariadbBasis, LoadingContract):
    """The loader contract on the MariaDB packaged by Debian."""

    loading_facts: ClassVar[LoadingFacts] = FACTS
    tested_with = "MariaDB 10.11"
    engine_on = staticmethod(engine_on)

    @pytest.fixture
    async def reading_engine(self, mariadb: ServerAddress) -> AsyncGenerator[Engine]:
        engine = engine_on(mariadb, read_only=True)
        yield engine
        await engine.close()

    async def test_append_to_nontransactional_table_is_refused(
        self, engine: Engine, loader: TableLoader, target: TableName
    ) -> None:
        await self.run(engine, "CREATE TABLE {t} (n BIGINT, s TEXT) ENGINE = MyISAM", target)
        load = self.load_of(target, append=True)
        with pytest.raises(StatementRejected, match="no transactions"):
            await self.load(loader, load, numbered(load, 1, 2))
        assert await self.rows(engine, load) == []

    async def test_names_differing_only_in_case_are_two_tables(
        self, engine: Engine, loader: TableLoader, target: TableName
    ) -> None:
        other = TableName(None, target.name.upper())
        await self.run(engine, self.loading_facts.create_sql, target)
        assert not await loader.exists(other)

    async def test_load_on_connection_ended_by_server_leaves_nothing(self, engine: Engine, target: TableName) -> None:
        load, ledger = self.load_of(target), MemoryLedger()
        # The loader will reuse this connection, because the engine has only this one.
        ((number,),) = await self.run(engine, "SELECT CONNECTION_ID()", target)

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            yield numbered(load, 1, 2)
            assert not await self.missing(engine, load.staging)
            await self.run(engine, f"KILL CONNECTION {number}", target)
            yield numbered(load, 3, 2)

        async with self.loading(engine) as loader:
            with pytest.raises(EngineError):
                await loader.load(load, batches(), ledger)
            assert not ledger.open
        assert await self.missing(engine, load.target, load.staging)


def escape(text: str) -> str:
    """Quote a string as the driver does if no character needs an escape."""
    return f"'{text}'"


def test_row_beyond_largest_packet_is_refused() -> None:
    """If the row were sent, the server would close the connection without reporting an error."""
    writer = RowWriter(escape, max_row_bytes=1024 * 1024)
    assert writer.write(pa.record_batch({"s": ["x" * 500_000] * 3})) == [f"('{'x' * 500_000}')".encode()] * 3
    with pytest.raises(StatementRejected, match="max_allowed_packet"):
        writer.write(pa.record_batch({"s": ["x", "x" * 1024 * 1024]}))


def test_rows_are_written_as_insert_literals() -> None:
    writer = RowWriter(escape, max_row_bytes=16 * 1024 * 1024)
    numbers = pa.record_batch({"n": pa.array([1, None, 3]), "b": pa.array([True, False, None])})
    assert writer.write(numbers) == [b"('1','1')", b"(NULL,'0')", b"('3',NULL)"]
    assert writer.write(numbers.slice(0, 0)) == []
