"""What becomes of a statement when the follower itself fails."""

import pytest

from queryserver.engines.hiveserver2.connection import Hs2Connection, Wire
from queryserver.engines.hiveserver2.operation import Hs2Operation
from queryserver.engines.hiveserver2.protocol.messages import Method, ReplyT, RequestT
from queryserver.engines.hiveserver2.protocol.structs import TOperationHandle, TSessionHandle
from queryserver.engines.hiveserver2.variants import SPARKSQL, Limits


class _FaultyConnection(Hs2Connection):
    """Every call ends in a fault of the program."""

    def __init__(self) -> None:
        self.opened_session = True

    def is_closed(self) -> bool:
        return False

    @property
    def is_busy(self) -> bool:
        return False

    async def call(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        *,
        limit_s: float,
        largest_cell: int | None = None,
    ) -> ReplyT:
        raise ZeroDivisionError


async def test_a_fault_of_ours_does_not_look_like_a_statement_that_runs_for_ever() -> None:
    async def more() -> Hs2Connection:
        return _FaultyConnection()

    wire = Wire(_FaultyConnection(), more, Limits())
    operation = Hs2Operation(wire, TSessionHandle(), TOperationHandle(), SPARKSQL)
    with pytest.raises(ZeroDivisionError):
        await operation.status(5)
    with pytest.raises(ZeroDivisionError):
        await operation.status(0)
