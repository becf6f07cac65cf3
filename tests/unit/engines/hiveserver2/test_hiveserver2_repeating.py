"""How it is known whether a server gives the rows of a result again."""

from dataclasses import dataclass, field

import pytest
from tests.fakes.hiveserver2_messages import SUCCESS

from queryserver.engines.hiveserver2.errors import WireLost
from queryserver.engines.hiveserver2.operation import has_tasks, keeps_rows
from queryserver.engines.hiveserver2.protocol.messages import EXECUTE_STATEMENT, FETCH_RESULTS, AnyMethod
from queryserver.engines.hiveserver2.protocol.structs import (
    Struct,
    TColumn,
    TExecuteStatementReq,
    TFetchResultsResp,
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
from queryserver.engines.hiveserver2.variants import HIVE, IMPALA, SPARKSQL, Hs2Variant, Limits

IDENTIFIER = THandleIdentifier(guid=b"g", secret=b"s")
SESSION = TSessionHandle(session_id=IDENTIFIER)


@dataclass
class SettingServer:
    """Answers SET with some cells; without cells it refuses, and None loses the answer. Stands for the wire as well."""

    cells: tuple[bytes, ...] | None
    limits: Limits = field(default_factory=Limits)
    seen: list[str] = field(default_factory=list[str])

    async def call(self, method: AnyMethod, request: Struct, *, limit_s: float) -> Struct:
        self.seen.append(method.name)
        if self.cells is None:
            raise WireLost(sent=True)
        if not self.cells:
            return TOperationResp(status=TStatus(status_code=TStatusCode.ERROR, error_message="not permitted"))
        if method is EXECUTE_STATEMENT:
            assert isinstance(request, TExecuteStatementReq)
            handle = TOperationHandle(operation_id=IDENTIFIER, operation_type=0, has_result_set=True)
            return TOperationResp(status=SUCCESS, operation_handle=handle)
        if method is FETCH_RESULTS:
            columns = [TColumn(string_val=TStringColumn(values=[cell], nulls=b"")) for cell in self.cells]
            return TFetchResultsResp(status=SUCCESS, results=TRowSet(start_row_offset=0, rows=[], columns=columns))
        return TStatusResp(status=SUCCESS)

    call_until_answered = call


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
async def test_a_setting_of_the_session_decides(
    variant: Hs2Variant, cells: tuple[bytes, ...] | None, kept: bool
) -> None:
    server = SettingServer(cells)
    assert await keeps_rows(server, SESSION, variant) is kept  # type: ignore[arg-type]
    if cells:
        assert server.seen == ["ExecuteStatement", "FetchResults", "CloseOperation"]


async def test_impala_says_it_itself() -> None:
    server = SettingServer(None)
    assert await keeps_rows(server, SESSION, IMPALA)  # type: ignore[arg-type]
    assert server.seen == []


@pytest.mark.parametrize(
    ("task_status", "had_tasks"),
    [('[{"taskId":"Stage-1","taskType":"MAPRED"}]', True), ("[]", False), ("", False), (None, False), ("{", False)],
)
def test_results_of_jobs_are_known_by_the_status(task_status: str | None, had_tasks: bool) -> None:
    assert has_tasks(TGetOperationStatusResp(status=SUCCESS, task_status=task_status)) is had_tasks
