"""How often a log is read and filtered."""

from dataclasses import dataclass, field

import pytest
from tests.fakes.hiveserver2_messages import SUCCESS

from queryserver.engines.hiveserver2 import operation as logs
from queryserver.engines.hiveserver2.errors import LogFilter, WireLost
from queryserver.engines.hiveserver2.operation import OperationLog
from queryserver.engines.hiveserver2.protocol.messages import GET_LOG, AnyMethod
from queryserver.engines.hiveserver2.protocol.structs import (
    Struct,
    TColumn,
    TFetchOrientation,
    TFetchResultsReq,
    TFetchResultsResp,
    TGetLogResp,
    THandleIdentifier,
    TOperationHandle,
    TRowSet,
    TStringColumn,
)
from queryserver.engines.hiveserver2.variants import Limits
from queryserver.engines.sessions import MAX_LOG_LINES

HANDLE = TOperationHandle(operation_id=THandleIdentifier(guid=b"g", secret=b"s"), operation_type=0, has_result_set=True)


@dataclass
class LogServer:
    """Has a log, and gives what has come since, or all of it. Stands for the wire as well."""

    values: list[str]
    limits: Limits = field(default_factory=Limits)
    at: int = 0
    calls: int = 0
    loses: bool = False

    async def call(self, method: AnyMethod, request: Struct, *, limit_s: float) -> Struct:
        self.calls += 1
        if method is GET_LOG:
            return TGetLogResp(status=SUCCESS, log="\n".join(self.values))
        assert isinstance(request, TFetchResultsReq)
        if request.orientation == TFetchOrientation.FIRST:
            self.at = 0
        given, self.at = self.values[self.at :], len(self.values)
        if self.loses:
            raise WireLost(sent=True)
        column = TColumn(string_val=TStringColumn(values=[value.encode() for value in given], nulls=b""))
        return TFetchResultsResp(status=SUCCESS, results=TRowSet(start_row_offset=0, rows=[], columns=[column]))


def log_of(server: LogServer, *, by_rpc: bool) -> OperationLog:
    return OperationLog(server, HANDLE, by_rpc=by_rpc)  # type: ignore[arg-type]


@pytest.mark.parametrize("by_rpc", [True, False])
async def test_lines_come_each_once(by_rpc: bool) -> None:
    server = LogServer(["a", "b\n\tat x.Y.z(Y.java:1)"])
    log = log_of(server, by_rpc=by_rpc)
    await log.read()
    server.values.append("c")
    await log.read()
    await log.read()
    assert log.lines == ["a", "b", "c"]


async def test_lines_whose_answer_was_lost_are_read_again() -> None:
    server = LogServer(["a"])
    log = log_of(server, by_rpc=False)
    await log.read()
    server.values.append("b")
    server.loses = True
    await log.read()
    server.loses = False
    await log.read()
    assert log.lines == ["a", "b"]


@pytest.mark.parametrize("by_rpc", [True, False])
async def test_a_log_that_is_full_is_not_asked_for_again(by_rpc: bool) -> None:
    server = LogServer([f"line {number}" for number in range(MAX_LOG_LINES + 5)])
    log = log_of(server, by_rpc=by_rpc)
    await log.read()
    assert (len(log.lines), log.lines[-1]) == (MAX_LOG_LINES, f"line {MAX_LOG_LINES - 1}")
    before = server.calls
    server.values.append("late")
    await log.read()
    assert server.calls == before


async def test_a_whole_log_that_has_not_changed_is_not_filtered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    filtered = list[str]()

    class Counted(LogFilter):
        def lines(self, lines):  # type: ignore[no-untyped-def]
            filtered.extend(lines)
            return super().lines(lines)

    monkeypatch.setattr(logs, "LogFilter", Counted)
    server = LogServer(["a", "b"])
    log = log_of(server, by_rpc=True)
    for _ in range(3):
        await log.read()
    assert filtered == ["a", "b"]
