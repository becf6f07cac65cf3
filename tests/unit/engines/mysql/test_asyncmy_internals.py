"""The private parts of asyncmy on which `asyncmy_internals.py` relies. `make test-engines` also tests them
on a server.
"""

import inspect
import struct

import pytest
from asyncmy.connection import Connection, MySQLResult, PreparedStatement
from asyncmy.constants import FIELD_TYPE
from asyncmy.constants.CLIENT import MULTI_STATEMENTS, PS_MULTI_RESULTS
from asyncmy.cursors import Cursor
from asyncmy.protocol import MysqlPacket, parse_binary_rows_from_buffer

from queryserver.engines.mysql.asyncmy_internals import Packet, RawConnection

_PART = 2**24 - 1


@pytest.mark.parametrize(
    ("called", "signature"),
    [
        (Connection._fill_buffer, "(self, need)"),
        (Connection._execute_command, "(self, command, sql)"),
        (Connection._read_query_result, "(self, unbuffered=False)"),
        (Connection._read_ok_packet, "(self)"),
        (Cursor._do_get_result, "(self)"),
        (MySQLResult._take_pending_rows, "(self, limit=None)"),
        (MySQLResult._check_packet_is_eof, "(self, packet)"),
        (MysqlPacket.is_auth_switch_request, "(self)"),
        (MysqlPacket.read_binary_row, "(self, colspecs)"),
        (parse_binary_rows_from_buffer, "(buf, pos, buf_len, colspecs, seq_id, rows, deprecate_eof=False)"),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_driver_signatures_match_our_calls(called, signature: str):
    assert str(inspect.signature(called)) == signature


async def test_connection_has_the_attributes_that_the_server_reads():
    connection = RawConnection()
    assert [connection._proto, connection._result, connection._transport] == [None, None, None]
    assert connection._next_seq_id == 0
    assert connection._deprecate_eof is False
    assert connection.is_closed()
    assert connection.fields == ()
    assert connection.warning_count == 0
    connection.pause()
    connection.resume()


async def test_result_has_the_attributes_that_the_server_reads():
    result = MySQLResult(Connection())
    assert (result.field_count, result.warning_count, result.unbuffered_active) == (0, 0, False)
    assert result.fields is None
    assert isinstance(result.connection, Connection)
    assert result._take_pending_rows(10) == []


async def test_multiple_statements_per_text_are_disabled():
    assert Connection()._client_flag & MULTI_STATEMENTS
    flag = RawConnection()._client_flag
    assert not flag & MULTI_STATEMENTS
    assert flag & PS_MULTI_RESULTS


async def test_execute_packet_starts_with_statement_id():
    header = PreparedStatement(Connection(), 7, 1)._execute_header
    assert header == struct.pack("<I", 7) + b"\0" + struct.pack("<I", 1)


def test_binary_rows_are_parsed_up_to_the_last_complete_packet():
    row = b"\0\0" + struct.pack("<i", 42)
    packet = struct.pack("<I", len(row))[:3] + b"\5" + row
    buffer, rows = bytearray(packet + packet[:6]), []
    specs = ((FIELD_TYPE.LONG, False, 0, None, None),)
    assert parse_binary_rows_from_buffer(buffer, 0, len(buffer), specs, 5, rows, False) == (len(packet), 6)
    assert rows == [(42,)]


@pytest.mark.parametrize(("size", "is_end"), [(7, True), (_PART, False)])
def test_long_row_starting_like_end_packet_is_not_an_end(size: int, is_end: bool):
    data = b"\xfe" + bytes(size - 1)
    assert MysqlPacket(data, "utf8").is_auth_switch_request()
    assert Packet(data, "utf8").is_auth_switch_request() is is_end
