"""Which failures of new connections are worth a further attempt."""

import asyncio

import pytest

from queryserver.engines.hiveserver2.connection import Hs2Connection, Wire
from queryserver.engines.hiveserver2.errors import WireLost
from queryserver.engines.hiveserver2.protocol.messages import GET_OPERATION_STATUS
from queryserver.engines.hiveserver2.protocol.structs import THandleIdentifier, TOperationHandle, TOperationReq
from queryserver.engines.hiveserver2.variants import Limits
from queryserver.errors.statements import CredentialsRequired, EngineError, EngineUnavailable, StatementRejected

HANDLE = TOperationHandle(operation_id=THandleIdentifier(guid=b"g", secret=b"s"), operation_type=0, has_result_set=True)


class _Broken(Hs2Connection):
    """The session's own connection after a break."""

    def __init__(self) -> None:
        pass

    def is_closed(self) -> bool:
        return True

    @property
    def is_busy(self) -> bool:
        return False


class _Group:
    """Makes no connection."""

    def __init__(self, error: EngineError) -> None:
        self.error = error
        self.attempts = 0
        self.was_asked_twice = asyncio.Event()

    async def more(self) -> Hs2Connection:
        self.attempts += 1
        if self.attempts == 2:
            self.was_asked_twice.set()
        raise self.error


async def _asked(wire: Wire) -> None:
    await wire.call_until_answered(GET_OPERATION_STATUS, TOperationReq(operation_handle=HANDLE), limit_s=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [CredentialsRequired("wrong"), StatementRejected("no such database")])
async def test_a_login_that_is_refused_is_not_tried_again(error: EngineError) -> None:
    """An attempt per second for a minute would lock the user's account in the directory."""
    group = _Group(error)
    with pytest.raises(WireLost):
        await _asked(Wire(_Broken(), group.more, Limits(retry_s=5)))
    assert group.attempts == 1


async def test_a_server_out_of_reach_is_tried_again_until_the_time_is_over() -> None:
    group = _Group(EngineUnavailable("no answer"))
    with pytest.raises(WireLost):
        await _asked(Wire(_Broken(), group.more, Limits(retry_s=0.5)))
    assert group.attempts > 2


async def test_the_attempts_end_when_the_session_is_left() -> None:
    group = _Group(EngineUnavailable("no answer"))
    wire = Wire(_Broken(), group.more, Limits(retry_s=600))
    asking = asyncio.create_task(_asked(wire))
    await group.was_asked_twice.wait()
    wire.release()
    with pytest.raises(WireLost):
        await asking
