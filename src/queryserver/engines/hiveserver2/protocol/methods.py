"""The calls of TCLIService and ImpalaHiveServer2Service by name."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from queryserver.engines.hiveserver2.protocol import calls, impala
from queryserver.engines.hiveserver2.protocol.declaring import Struct

RequestT = TypeVar("RequestT", bound=Struct)
ReplyT = TypeVar("ReplyT", bound=Struct)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ReplyT]):
    """One call."""

    name: str
    request: type[RequestT]
    reply: type[ReplyT]


OPEN_SESSION = Method("OpenSession", calls.TOpenSessionReq, calls.TOpenSessionResp)
CLOSE_SESSION = Method("CloseSession", calls.TCloseSessionReq, calls.TStatusResp)
EXECUTE_STATEMENT = Method("ExecuteStatement", calls.TExecuteStatementReq, calls.TOperationResp)
GET_OPERATION_STATUS = Method("GetOperationStatus", calls.TGetOperationStatusReq, calls.TGetOperationStatusResp)
CANCEL_OPERATION = Method("CancelOperation", calls.TOperationReq, calls.TStatusResp)
CLOSE_OPERATION = Method("CloseOperation", calls.TOperationReq, calls.TStatusResp)
GET_RESULT_SET_METADATA = Method("GetResultSetMetadata", calls.TOperationReq, calls.TGetResultSetMetadataResp)
FETCH_RESULTS = Method("FetchResults", calls.TFetchResultsReq, calls.TFetchResultsResp)
GET_LOG = Method("GetLog", calls.TOperationReq, calls.TGetLogResp)

CLOSE_IMPALA_OPERATION = Method("CloseImpalaOperation", calls.TOperationReq, impala.TCloseImpalaOperationResp)
GET_EXEC_SUMMARY = Method("GetExecSummary", impala.TGetExecSummaryReq, impala.TGetExecSummaryResp)

AnyMethod = Method[Any, Any]
