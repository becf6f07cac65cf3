"""Whether a server gives all rows of a result from the first one again (FETCH_FIRST).

Measured on Hive 4.0.1: a query without a job whose rows are made while they are read (`hive.fetch.task.caching=false`)
starts again with the counters of its LIMIT where they were, and silently gives fewer rows. Results of jobs are files.
"""

import json
from contextlib import suppress

from queryserver.engines.hiveserver2.errors import CALL_FAILURES, check
from queryserver.engines.hiveserver2.protocol.calls import (
    FetchType,
    TExecuteStatementReq,
    TFetchOrientation,
    TFetchResultsReq,
    TGetOperationStatusResp,
    TOperationReq,
)
from queryserver.engines.hiveserver2.protocol.methods import CLOSE_OPERATION, EXECUTE_STATEMENT, FETCH_RESULTS
from queryserver.engines.hiveserver2.protocol.rows import TRowSet
from queryserver.engines.hiveserver2.protocol.status import TOperationHandle, TSessionHandle
from queryserver.engines.hiveserver2.variants import Variant
from queryserver.engines.hiveserver2.wire import Wire

_FEW_ROWS = 10


def has_tasks(reply: TGetOperationStatusResp) -> bool:
    """Whether the statement had a task of its own (Hive), which leaves its rows in files."""
    try:
        return bool(json.loads(reply.task_status or "[]"))
    except (ValueError, RecursionError):
        return False


async def keeps_rows(wire: Wire, session: TSessionHandle, variant: Variant) -> bool:
    """Whether the session keeps the rows of its results, by the setting that decides it; False where it is not known.

    Servers without such a setting refuse by themselves what they cannot give again.
    """
    kept = variant.kept_rows
    if kept is None:
        return True
    with suppress(*CALL_FAILURES):
        values = await _setting(wire, session, kept.setting)
        return bool(values) and values[-1].rpartition("=")[2].lower() in kept.values
    return False


async def _setting(wire: Wire, session: TSessionHandle, name: str) -> list[str]:
    """The cells of the answer to SET: `name=value` in one cell, or name and value in two."""
    limit_s = wire.limits.other_s
    request = TExecuteStatementReq(session_handle=session, statement=f"SET {name}", run_async=False)
    started = await wire.call_until_answered(EXECUTE_STATEMENT, request, limit_s=limit_s)
    check(started.status)
    if started.operation_handle is None:
        return []
    try:
        return await _cells(wire, started.operation_handle)
    finally:
        with suppress(*CALL_FAILURES):
            await wire.call(
                CLOSE_OPERATION, TOperationReq(operation_handle=started.operation_handle), limit_s=wire.limits.end_s
            )


async def _cells(wire: Wire, handle: TOperationHandle) -> list[str]:
    request = TFetchResultsReq(
        operation_handle=handle,
        orientation=TFetchOrientation.FIRST,
        max_rows=_FEW_ROWS,
        fetch_type=FetchType.ROWS,
    )
    reply = await wire.call_until_answered(FETCH_RESULTS, request, limit_s=wire.limits.other_s)
    check(reply.status)
    rows = reply.results or TRowSet(start_row_offset=0, rows=[])
    texts = [one.string_val.values for one in rows.columns or [] if one.string_val is not None]
    return [values[0].decode("utf-8", "replace") for values in texts if values]
