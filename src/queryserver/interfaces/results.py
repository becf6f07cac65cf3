"""Where the rows of a statement are kept until their time is over."""

from typing import Protocol
from uuid import UUID

import pyarrow as pa

from queryserver.domain.result import Segment


class ResultStore(Protocol):
    """Segments of Arrow rows by statement and number. Which segments count is said by the statement's record.

    Raises StorageError, StorageUnavailable, StorageError, and PathNotFound for a segment that is gone.
    """

    async def append(self, statement_id: UUID, *, fence: int, number: int, start_row: int, table: pa.Table) -> Segment:
        """Store one segment; when this returns its bytes survive a crash of the machine.

        `fence` is part of the name, so that a runner that lost its lease never touches its successor's bytes.
        """
        ...

    async def read(self, statement_id: UUID, *, fence: int, number: int) -> pa.Table:
        """One segment, as stored."""
        ...

    async def schema(self, statement_id: UUID, *, fence: int, number: int) -> pa.Schema:
        """The Arrow types of one segment, for much less than reading it."""
        ...

    async def delete(self, statement_id: UUID) -> None:
        """Delete all segments of a statement; nothing happens when there are none."""
        ...

    async def ping(self) -> None:
        """Write, read and delete a small object."""
        ...
