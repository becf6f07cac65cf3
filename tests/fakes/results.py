"""An in-memory ResultStore."""

from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import PathNotFound
from queryserver.results.segments import Segment, encode, head_length


class MemoryResults:
    """Implements ResultStore with a dictionary. Once `failure` is set, every call raises it."""

    def __init__(self) -> None:
        self._tables: dict[tuple[UUID, int, int], pa.Table] = {}
        self.failure: QueryServerError | None = None

    async def append(self, statement_id: UUID, *, fence: int, number: int, start_row: int, table: pa.Table) -> Segment:
        self._fail()
        self._tables[statement_id, fence, number] = table
        return Segment(number, start_row, table.num_rows, len(encode(table)))

    async def read(self, statement_id: UUID, *, fence: int, number: int) -> pa.Table:
        self._fail()
        try:
            return self._tables[statement_id, fence, number]
        except KeyError:
            raise PathNotFound("The segment does not exist.") from None

    async def rows(self, statement_id: UUID, *, fence: int, number: int, start_row: int, rows: int) -> pa.Table:
        return (await self.read(statement_id, fence=fence, number=number)).slice(start_row, rows)

    async def head(self, statement_id: UUID, *, fence: int, number: int) -> bytes:
        stored = encode(await self.read(statement_id, fence=fence, number=number))
        return stored[: head_length(stored)]

    async def part(self, statement_id: UUID, start: int, stop: int, *, fence: int, number: int) -> bytes:
        return encode(await self.read(statement_id, fence=fence, number=number))[start:stop]

    async def has_all(self, statement_id: UUID, segments: Sequence[Segment]) -> bool:
        self._fail()
        found = ((self._tables.get((statement_id, one.fence, one.number)), one.size_bytes) for one in segments)
        return all(table is not None and len(encode(table)) == size_bytes for table, size_bytes in found)

    async def open_file(self, statement_id: UUID, *, fence: int, number: int) -> int | None:
        del statement_id, fence, number
        return None

    async def delete(self, statement_id: UUID) -> None:
        self._fail()
        for key in [key for key in self._tables if key[0] == statement_id]:
            del self._tables[key]

    async def ping(self) -> None:
        self._fail()

    async def close(self) -> None:
        """Do nothing, because there is nothing to close."""

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure
