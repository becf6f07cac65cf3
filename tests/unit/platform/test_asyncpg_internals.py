"""The private parts of asyncpg on which `asyncpg_internals.py` relies."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import asyncpg.cursor
import pytest
from asyncpg.prepared_stmt import PreparedStatement
from asyncpg.protocol import protocol
from tests.timing import settle

from queryserver.platform.asyncpg_internals import Portal, TappedConnection, register_arrays

ARRAYS = {
    "boolean[]": [True, None],
    "bytea[]": [b"\0\1"],
    "int[]": [1, 2],
    "bigint[]": [2**40],
    "timestamptz[]": [datetime(2026, 1, 1, tzinfo=UTC)],
    "uuid[]": [UUID(int=1)],
}


class Tap(asyncio.Protocol):
    """A protocol that counts the bytes it forwards."""

    def __init__(self, receiver: asyncio.Protocol) -> None:
        self._receiver = receiver
        self.received = 0

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self._receiver.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.connection_lost(exc)


@pytest.fixture
async def connection(shared_database_dsn: str) -> AsyncIterator[TappedConnection]:
    connection = await asyncpg.connect(shared_database_dsn, connection_class=TappedConnection)
    yield connection
    await connection.close()


def parameters(called: object) -> list[str]:
    return list(inspect.signature(called).parameters)


def test_driver_signatures_match_our_calls():
    assert parameters(asyncpg.Connection)[:3] == ["protocol", "transport", "loop"]
    assert parameters(asyncpg.cursor.Cursor) == ["connection", "query", "state", "args", "record_class"]
    assert parameters(asyncpg.cursor.Cursor._exec) == ["self", "n", "timeout"]
    assert parameters(asyncpg.cursor.Cursor._bind_exec) == ["self", "n", "timeout"]
    assert parameters(asyncpg.cursor.Cursor._close_portal) == ["self", "timeout"]
    assert {"_portal_name", "_exhausted"} <= {*asyncpg.cursor.BaseCursor.__slots__}
    assert "_state" in PreparedStatement.__slots__
    assert hasattr(protocol.ConnectionSettings, "register_data_types")
    assert hasattr(protocol.ConnectionSettings, "set_builtin_type_codec")


@pytest.mark.parametrize("name", ARRAYS)
async def test_registered_arrays_need_no_catalog_query(connection: TappedConnection, name: str):
    register_arrays(connection)
    queries: list[str] = []
    connection.add_query_logger(lambda record: queries.append(record.query))
    assert await connection.fetchval(f"SELECT $1::{name}", ARRAYS[name]) == ARRAYS[name]
    await settle()
    assert queries == [f"SELECT $1::{name}"]


async def test_unregistered_array_needs_catalog_query(connection: TappedConnection):
    queries: list[str] = []
    connection.add_query_logger(lambda record: queries.append(record.query))
    await connection.fetchval("SELECT $1::bigint[]", [1])
    await settle()
    assert len(queries) > 1


async def test_type_can_be_decoded_as_another_type(connection: TappedConnection):
    connection.decode_as("int4", 1082)
    connection.decode_as("text", 600, text=True)
    assert await connection.fetchval("SELECT DATE '2000-01-03'") == 2
    assert await connection.fetchval("SELECT POINT '(1,2)'") == "(1,2)"


async def test_encoding_of_text_follows_the_session(connection: TappedConnection):
    assert connection.text_encoding == "utf-8"
    await connection.execute("SET client_encoding = 'LATIN1'")
    assert connection.text_encoding == "iso8859-1"


async def test_received_bytes_pass_through_filters(connection: TappedConnection):
    always = Tap(connection.receiver)
    connection.receive_by(always)
    with connection.tapped(Tap(connection.receiver)) as tap:
        assert await connection.fetchval("SELECT 1") == 1
    assert tap.received == always.received > 0
    await connection.fetchval("SELECT 2")
    assert always.received > tap.received


async def test_portal_returns_rows_in_chunks_and_can_be_closed(connection: TappedConnection):
    prepared = await connection.prepare("SELECT n FROM generate_series($1::int, 10) AS n", name="of_this_test")
    async with connection.transaction():
        portal = Portal(connection, prepared, [1])
        chunks = [[row["n"] for row in await portal.request(4)] for _ in range(3)]
        assert chunks == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
        open_portals = "SELECT count(*) FROM pg_cursors WHERE name <> ''"
        assert await connection.fetchval(open_portals) == 1
        await portal.close()
        assert await connection.fetchval(open_portals) == 0


async def test_forgotten_statement_is_not_closed(connection: TappedConnection):
    forgotten = await connection.prepare("SELECT 1", name="forgotten")
    del forgotten
    connection.forget_statements()
    closed = await connection.prepare("SELECT 1", name="closed")
    del closed
    last = await connection.prepare("SELECT name FROM pg_prepared_statements", name="last")
    names = {row["name"] for row in await last.fetch()}
    assert {"forgotten", "last"} <= names
    assert "closed" not in names


async def test_command_sent_ahead_takes_effect_before_the_next_request(connection: TappedConnection):
    connection.send_ahead("SET application_name = 'ahead'")
    assert await connection.fetchval("SELECT current_setting('application_name')") == "ahead"
    assert getattr(connection.get_settings(), "application_name") == "ahead"  # noqa: B009 asyncpg finds it by name


async def test_reply_to_a_command_sent_ahead_is_skipped_before_a_tapped_request(connection: TappedConnection):
    connection.send_ahead("SET application_name = 'ahead'")
    with connection.tapped(Tap(connection.receiver)) as tap:
        assert await connection.fetchval("SELECT 7") == 7
    assert tap.received > 0
    assert await connection.fetchval("SELECT current_setting('application_name')") == "ahead"


async def test_reply_to_a_command_sent_ahead_may_arrive_in_pieces(connection: TappedConnection):
    class Pieces(asyncio.Protocol):
        """Passes each byte on alone, to the protocol that the connection has at that time."""

        def __init__(self, skipped: asyncio.Protocol) -> None:
            self._receiver = skipped

        def data_received(self, data: bytes) -> None:
            for place in range(len(data)):
                self._receiver.data_received(data[place : place + 1])
            connection.transport.set_protocol(connection.receiver)

    connection.send_ahead("SET application_name = 'in pieces'")
    skipped = connection.transport.get_protocol()
    connection.transport.set_protocol(Pieces(skipped))  # type: ignore[arg-type]
    await asyncio.sleep(0.2)
    assert await connection.fetchval("SELECT current_setting('application_name')") == "in pieces"


async def test_refused_command_sent_ahead_does_not_disturb_the_next_request(connection: TappedConnection):
    transaction = connection.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.DivisionByZeroError):
        await connection.fetchval("SELECT 1/0")
    connection.send_ahead("SET application_name = 'refused'")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await connection.fetchval("SELECT 1")
    await transaction.rollback()
    assert await connection.fetchval("SELECT 1") == 1
