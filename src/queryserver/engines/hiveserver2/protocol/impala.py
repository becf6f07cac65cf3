"""What Impala's ImpalaHiveServer2Service adds to TCLIService."""

from queryserver.engines.hiveserver2.protocol.calls import OPERATION, SESSION, STATUS
from queryserver.engines.hiveserver2.protocol.declaring import (
    BOOL,
    I32,
    I64,
    TEXT,
    Struct,
    list_of,
    map_of,
    struct,
    struct_of,
    wire,
)
from queryserver.engines.hiveserver2.protocol.status import TOperationHandle, TSessionHandle, TStatus


@struct
class TDmlResult(Struct):
    """Rows by partition; the empty text stands for an unpartitioned table."""

    rows_modified: dict[str, int] = wire(1, map_of(TEXT, I64))
    num_row_errors: int | None = wire(2, I64, default=None)
    rows_deleted: dict[str, int] | None = wire(3, map_of(TEXT, I64), default=None)


@struct
class TCloseImpalaOperationResp(Struct):
    """`dml_result` is set after a change of data."""

    status: TStatus = wire(1, STATUS)
    dml_result: TDmlResult | None = wire(2, struct_of(TDmlResult), default=None)


@struct
class TExecProgress(Struct):
    total_scan_ranges: int | None = wire(1, I64, default=None)
    num_completed_scan_ranges: int | None = wire(2, I64, default=None)
    total_fragment_instances: int | None = wire(3, I64, default=None)
    num_completed_fragment_instances: int | None = wire(4, I64, default=None)


@struct
class TExecSummary(Struct):
    """Of the summary only what tells progress; plan nodes are skipped."""

    state: int | None = wire(1, I32, default=None)
    error_logs: list[str] | None = wire(5, list_of(TEXT), default=None)
    progress: TExecProgress | None = wire(6, struct_of(TExecProgress), default=None)
    is_queued: bool | None = wire(7, BOOL, default=None)
    queued_reason: str | None = wire(8, TEXT, default=None)


@struct
class TGetExecSummaryReq(Struct):
    operation_handle: TOperationHandle | None = wire(1, OPERATION, default=None)
    session_handle: TSessionHandle | None = wire(2, SESSION, default=None)


@struct
class TGetExecSummaryResp(Struct):
    status: TStatus = wire(1, STATUS)
    summary: TExecSummary | None = wire(2, struct_of(TExecSummary), default=None)
