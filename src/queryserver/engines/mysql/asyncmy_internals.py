"""Wraps the undocumented parts of asyncmy that the MySQL adapter needs. No other file uses them (ADR 80).

The names used, and the reason for each:

- `Connection._client_flag`: asyncmy always permits several statements in one text; its option `client_flag` can only
  add flags.
- `_transport`: asyncmy reads from its socket continuously and would buffer all rows for a slow reader.
- `_fill_buffer`, `_proto` (`buffer`, `pos`, `length`): asyncmy receives packets of any size. The method is called with
  the size of a packet before the packet is received, and the buffer contains the packet's first bytes.
- `_result` (`fields`, `field_count`, `warning_count`, `_take_pending_rows`): the documented methods return columns
  without type flags. They fetch either a single row or a fixed number of rows, whatever their size.
- `_execute_command`, `_read_query_result`, `_read_ok_packet`, `PreparedStatement._execute_header`,
  `Cursor._do_get_result`, `parse_binary_rows_from_buffer`, `MysqlPacket.read_binary_row`, `_next_seq_id`,
  `_deprecate_eof`, `MySQLResult._check_packet_is_eof`, `unbuffered_active`, `connection`: a documented prepared
  statement reads its whole result at once. `_execute_command` and `_read_ok_packet` also reset a session, for which
  there is no documented method.
- `MysqlPacket.is_auth_switch_request`: asyncmy mistakes some rows for the end of a result.
- `_stream_broken`: `connected` remains true when the server has closed the connection.

`tests/unit/engines/mysql/test_asyncmy_internals.py` fails when one of these names changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from asyncmy import Connection
from asyncmy.constants.CLIENT import MULTI_STATEMENTS, PS_MULTI_RESULTS
from asyncmy.protocol import MysqlPacket, parse_binary_rows_from_buffer

from queryserver.engines.mysql.values import Spec

_COM_STMT_EXECUTE = 0x17
_COM_RESET_CONNECTION = 0x1F
_MAX_PACKET_BYTES = 2**24 - 1


class Packet(MysqlPacket):
    """Corrects how asyncmy detects the last packet of a text result."""

    def is_auth_switch_request(self) -> bool:
        """Also check the length: a row whose first value has 16 MiB or more starts with the same byte, but is
        longer.
        """
        return bool(super().is_auth_switch_request()) and len(self.get_all_data()) < _MAX_PACKET_BYTES


class RawConnection(Connection):
    """A connection that rejects multi-statement SQL, returns rows as they arrive, and can be paused.

    `options` are passed to `asyncmy.Connection`.
    """

    # These attributes are missing from the driver's stubs.
    _proto: Any
    _client_flag: int
    _result: Any
    _stream_broken: bool
    _transport: asyncio.Transport | None
    _deprecate_eof: bool
    _next_seq_id: int
    _execute_command: Callable[[int, bytes], Awaitable[None]]
    _read_ok_packet: Callable[[], Awaitable[object]]
    _read_query_result: Callable[[bool], Awaitable[None]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Makes the server reject texts with several statements.
        self._client_flag &= ~MULTI_STATEMENTS
        self._client_flag |= PS_MULTI_RESULTS

    def is_closed(self) -> bool:
        return not self.connected or self._stream_broken

    def pause(self) -> None:
        """Stop receiving rows until `resume` is called."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    @property
    def fields(self) -> Sequence[Any]:
        """asyncmy's field descriptors for the result set; empty if there is no result set."""
        result = self._result
        return () if result is None or not result.field_count else result.fields

    @property
    def warning_count(self) -> int:
        """The number of warnings for the last result set, valid once it has been read completely."""
        return 0 if self._result is None else self._result.warning_count

    async def execute_prepared(self, statement: Any, values: bytes, cursor: Any) -> None:
        """Run a prepared statement up to its first result set or its completion. `values` are already packed."""
        await self._execute_command(_COM_STMT_EXECUTE, statement._execute_header + values)  # noqa: SLF001
        await self._read_query_result(True)
        await cursor._do_get_result()  # noqa: SLF001

    def take_received_rows(self, count: int) -> list[tuple[bytes | None, ...]]:
        """Return up to `count` rows of a text result that were received after the last fetched row."""
        return self._result._take_pending_rows(count)  # noqa: SLF001

    async def next_binary_rows(self, specs: tuple[Spec, ...]) -> list[tuple[Any, ...]]:
        """Return the received rows of a binary result, or wait for the next row; empty after the last row."""
        proto, rows = self._proto, list[tuple[Any, ...]]()
        proto.pos, self._next_seq_id = parse_binary_rows_from_buffer(
            proto.buffer, proto.pos, proto.length, specs, self._next_seq_id, rows, self._deprecate_eof
        )
        if not rows:
            packet = await self.read_packet()
            if self._result._check_packet_is_eof(packet):  # noqa: SLF001 it also notes the number of warnings
                self._result.unbuffered_active, self._result.connection = False, None
                return []
            rows.append(packet.read_binary_row(specs))
        return rows

    async def reset_session(self) -> None:
        """Reset the session to its state after login. Older servers report an error instead."""
        await self._execute_command(_COM_RESET_CONNECTION, b"")
        await self._read_ok_packet()

    async def read_packet(self, packet_type: Any = Packet) -> Any:
        """Read a packet. asyncmy calls this for each packet, except for rows that are already buffered completely."""
        return await super().read_packet(packet_type)

    async def check_size(self, need: int) -> None:
        """Check the size of the data that asyncmy is about to wait for.

        `need` is the number of bytes of a header, or of the rest of a packet or packet part.

        Subclasses override this method. If it raises an error, the rest of the packet is not received.
        """

    async def received(self, size: int) -> bytes:
        """Return the first `size` bytes of the awaited packet without consuming them."""
        await self._fill(size)
        proto = self._proto
        return bytes(proto.buffer[proto.pos : proto.pos + size])

    async def _fill_buffer(self, need: int) -> None:
        await self.check_size(need)
        await self._fill(need)

    async def _fill(self, need: int) -> None:
        driver: Any = super()
        await driver._fill_buffer(need)  # noqa: SLF001 the stubs leave it out
