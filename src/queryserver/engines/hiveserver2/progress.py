"""How far a statement is, in percent."""

import math

from queryserver.engines.hiveserver2.errors import CALL_FAILURES
from queryserver.engines.hiveserver2.protocol.calls import TProgressUpdateResp
from queryserver.engines.hiveserver2.protocol.impala import TGetExecSummaryReq
from queryserver.engines.hiveserver2.protocol.methods import GET_EXEC_SUMMARY
from queryserver.engines.hiveserver2.protocol.status import TOperationHandle, TSessionHandle, TStatusCode
from queryserver.engines.hiveserver2.wire import Wire

_NOT_AVAILABLE = 2


def percentage(update: TProgressUpdateResp | None, before: int | None) -> int | None:
    """What the server tells with a status, never less than before; None where it never tells."""
    if update is None or update.status == _NOT_AVAILABLE:
        return before
    share = update.progressed_percentage
    return before if math.isnan(share) else max(before or 0, round(100 * min(max(share, 0.0), 1.0)))


async def summary_percentage(wire: Wire, session: TSessionHandle, handle: TOperationHandle) -> int | None:
    """Scan ranges that Impala has done; None while it does not tell. It wants the session named as well."""
    try:
        request = TGetExecSummaryReq(operation_handle=handle, session_handle=session)
        reply = await wire.call(GET_EXEC_SUMMARY, request, limit_s=wire.limits.other_s)
    except CALL_FAILURES:
        return None
    summary = reply.summary if reply.status.status_code == TStatusCode.SUCCESS else None
    told = summary.progress if summary is not None else None
    if told is None or not told.total_scan_ranges or told.num_completed_scan_ranges is None:
        return None
    return min(100 * told.num_completed_scan_ranges // told.total_scan_ranges, 100)
