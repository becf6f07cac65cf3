"""Statements whose rows come from a stored result."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from queryserver.engines.external_data import ResultPiece
from queryserver.engines.protocol import OperationState
from queryserver.errors.base import ServiceUnavailable
from queryserver.errors.statements import EngineError
from queryserver.formats.arrow import Column, ResultType
from queryserver.statements.grant_repository import ReadSources
from queryserver.statements.stored_session import StoredSession


@dataclass
class MemoryResult:
    """A result of two pieces. If `is_away` is set, the store cannot be reached."""

    is_away: bool = False
    columns: tuple[Column, ...] = (Column("n", ResultType.BIGINT, "BIGINT"),)
    pieces: tuple[ResultPiece, ...] = ()
    warning: str = ""
    sources: ReadSources = field(default_factory=ReadSources)

    async def descriptor(self, number: int) -> int | None:
        raise NotImplementedError

    async def read(self, number: int, start: int, stop: int) -> bytes:
        raise NotImplementedError

    async def tables(self) -> AsyncGenerator[pa.Table]:
        for number in (0, 2):
            if self.is_away:
                raise ServiceUnavailable("The result store cannot be reached.")
            yield pa.table({"n": [number, number + 1]})


async def test_rows_of_all_pieces_are_read_in_order() -> None:
    session = StoredSession(MemoryResult())
    handle = await session.submit("ignored")
    status = await session.poll(handle)
    assert (status.state, status.has_result_set) == (OperationState.FINISHED, True)
    assert await session.columns(handle) == session.source.columns
    assert [n async for batch in session.batches(handle) for n in batch.column(0).to_pylist()] == [0, 1, 2, 3]


async def test_canceled_session_yields_no_more_rows() -> None:
    session = StoredSession(MemoryResult())
    handle = await session.submit("")
    batches = session.batches(handle)
    assert (await anext(batches)).num_rows == 2
    await session.cancel(handle)
    assert [batch async for batch in batches] == []
    assert (await session.poll(handle)).state is OperationState.CANCELED


async def test_unreachable_store_is_an_error_of_the_statement() -> None:
    session = StoredSession(MemoryResult(is_away=True))
    with pytest.raises(EngineError, match="The result store cannot be reached"):
        await anext(session.batches(await session.submit("")))
