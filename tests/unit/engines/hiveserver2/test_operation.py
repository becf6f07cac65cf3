"""The status and the log of a statement, and whether its rows can be fetched a second time."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.fakes.hiveserver2_messages import SUCCESS

from queryserver.engines.hiveserver2 import operation as logs
from queryserver.engines.hiveserver2.connection import Hs2Connection, Wire
from queryserver.engines.hiveserver2.errors import ConnectionLost, LogFilter, ServerRefused
from queryserver.engines.hiveserver2.messages import EXECUTE_STATEMENT, FETCH_RESULTS, GET_LOG, Method, ReplyT, RequestT
from queryserver.engines.hiveserver2.operation import Hs2Operation, OperationLog, ran_tasks, retains_rows
from queryserver.engines.hiveserver2.structs import (
    Struct,
    TColumn,
    TExecuteStatementReq,
    TFetchOrientation,
    TFetchResultsReq,
    TFetchResultsResp,
    TGetLogResp,
    TGetOperationStatusResp,
    THandleIdentifier,
    TOperationHandle,
    TOperationResp,
    TRowSet,
    TSessionHandle,
    TStatus,
    TStatusCode,
    TStatusResp,
    TStringColumn,
)
from queryserver.engines.hiveserver2.variants import HIVE, IMPALA, SPARKSQL, Limits
from queryserver.engines.sessions import MAX_LOG_LINES


class _FaultyConnection(Hs2Connection):
    """A connection on which every call raises a programming error."""

    def __init__(self) -> None:
        self.opened_session = True

    def is_closed(self) -> bool:
        return False

    @property
    def is_busy(self) -> bool:
        return False

    async def call(
        self, method: Method[RequestT, ReplyT], request: RequestT, *, limit_s: float, largest_cell: int | None = None
    ) -> ReplyT:
        raise ZeroDivisionError


async def test_internal_error_while_polling_status_is_raised() -> None:
    async def more() -> Hs2Connection:
        return _FaultyConnection()

    wire = Wire(_FaultyConnection(), more, Limits())
    operation = Hs2Operation(wire, TSessionHandle(), TOperationHandle(), SPARKSQL)
    with pytest.raises(ZeroDivisionError):
        await operation.status(5)
    with pytest.raises(ZeroDivisionError):
        await operation.status(0)


HANDLE = TOperationHandle(operation_id=THandleIdentifier(guid=b"g", secret=b"s"), operation_type=0, has_result_set=True)


@dataclass
class LogServer:
    """A server with a log: FetchResults returns new lines, and GetLog returns all lines. Also replaces `Wire`."""

    values: list[str]
    limits: Limits = field(default_factory=Limits)
    at: int = 0
    calls: int = 0
    loses: bool = False

    async def call(self, method: Method[Any, Any], request: Struct, *, limit_s: float) -> Struct:
        self.calls += 1
        if method is GET_LOG:
            return TGetLogResp(status=SUCCESS, log="\n".join(self.values))
        assert isinstance(request, TFetchResultsReq)
        if request.orientation == TFetchOrientation.FIRST:
            self.at = 0
        given, self.at = self.values[self.at :], len(self.values)
        if self.loses:
            raise ConnectionLost(sent=True)
        column = TColumn(string_val=TStringColumn(values=[value.encode() for value in given], nulls=b""))
        return TFetchResultsResp(status=SUCCESS, results=TRowSet(columns=[column]))


def log_of(server: LogServer, *, by_rpc: bool) -> OperationLog:
    return OperationLog(server, HANDLE, by_rpc=by_rpc)  # type: ignore[arg-type]


@pytest.mark.parametrize("by_rpc", [True, False])
async def test_each_log_line_is_returned_once(by_rpc: bool) -> None:
    server = LogServer(["a", "b\n\tat x.Y.z(Y.java:1)"])
    log = log_of(server, by_rpc=by_rpc)
    await log.read()
    server.values.append("c")
    await log.read()
    await log.read()
    assert log.lines == ["a", "b", "c"]


async def test_log_lines_from_lost_reply_are_read_again() -> None:
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
async def test_full_log_is_not_requested_again(by_rpc: bool) -> None:
    server = LogServer([f"line {number}" for number in range(MAX_LOG_LINES + 5)])
    log = log_of(server, by_rpc=by_rpc)
    await log.read()
    assert (len(log.lines), log.lines[-1]) == (MAX_LOG_LINES, f"line {MAX_LOG_LINES - 1}")
    before = server.calls
    server.values.append("late")
    await log.read()
    assert server.calls == before


async def test_unchanged_log_is_not_filtered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    filtered = list[str]()

    class Counted(LogFilter):
        def line(self, line):  # type: ignore[no-untyped-def]
            filtered.append(line)
            return super().line(line)

    monkeypatch.setattr(logs, "LogFilter", Counted)
    server = LogServer(["a", "b"])
    log = log_of(server, by_rpc=True)
    for _ in range(3):
        await log.read()
    assert filtered == ["a", "b"]


IDENTIFIER = THandleIdentifier(guid=b"g", secret=b"s")
SESSION = TSessionHandle(session_id=IDENTIFIER)


@dataclass
class SettingServer:
    """A server that replies to SET with `cells`. An empty tuple refuses the statement, and None loses the reply. Also
    replaces `Wire`.
    """

    cells: tuple[bytes, ...] | None
    limits: Limits = field(default_factory=Limits)
    seen: list[str] = field(default_factory=list[str])

    async def call(self, method: Method[Any, Any], request: Struct, *, limit_s: float) -> Struct:
        self.seen.append(method.name)
        if self.cells is None:
            raise ConnectionLost(sent=True)
        if not self.cells:
            raise ServerRefused(TStatus(status_code=TStatusCode.ERROR, error_message="not permitted"))
        if method is EXECUTE_STATEMENT:
            assert isinstance(request, TExecuteStatementReq)
            handle = TOperationHandle(operation_id=IDENTIFIER, operation_type=0, has_result_set=True)
            return TOperationResp(status=SUCCESS, operation_handle=handle)
        if method is FETCH_RESULTS:
            columns = [TColumn(string_val=TStringColumn(values=[cell], nulls=b"")) for cell in self.cells]
            return TFetchResultsResp(status=SUCCESS, results=TRowSet(columns=columns))
        return TStatusResp(status=SUCCESS)

    call_with_retries = call


@pytest.mark.parametrize(
    ("variant", "cells", "kept"),
    [
        (HIVE, (b"hive.fetch.task.caching=true",), True),
        (HIVE, (b"hive.fetch.task.caching=false",), False),
        (HIVE, (b"hive.fetch.task.caching is undefined",), False),
        (HIVE, (), False),
        (HIVE, None, False),
        (SPARKSQL, (b"spark.sql.thriftServer.incrementalCollect", b"false"), True),
        (SPARKSQL, (b"spark.sql.thriftServer.incrementalCollect", b"<undefined>"), True),
        (SPARKSQL, (b"spark.sql.thriftServer.incrementalCollect", b"true"), False),
    ],
)
async def test_session_setting_decides_whether_rows_are_kept(variant, cells, kept) -> None:
    server = SettingServer(cells)
    assert await retains_rows(server, SESSION, variant) is kept  # type: ignore[arg-type]
    if cells:
        assert server.seen == ["ExecuteStatement", "FetchResults", "CloseOperation"]


async def test_impala_retains_rows_without_a_settings_query() -> None:
    server = SettingServer(None)
    assert await retains_rows(server, SESSION, IMPALA)  # type: ignore[arg-type]
    assert server.seen == []


@pytest.mark.parametrize(("task_status", "had_tasks"),
    [('[{"taskId":"Stage-1","taskType":"MAPRED"}]', True), ("[]", False), ("", False), (None, False),
    ("{", False)])  # fmt: skip
def test_task_status_shows_whether_operation_had_tasks(task_status: str | None, had_tasks: bool) -> None:
    assert ran_tasks(TGetOperationStatusResp(status=SUCCESS, task_status=task_status)) is had_tasks
