"""Request bodies and query parameters of all calls; the operations table names them as they stand here."""

from queryserver.schemas.requests.metadata import AutocompleteRequest as AutocompleteRequest
from queryserver.schemas.requests.metadata import DescribeRequest as DescribeRequest
from queryserver.schemas.requests.metadata import ExplainRequest as ExplainRequest
from queryserver.schemas.requests.metadata import FormatRequest as FormatRequest
from queryserver.schemas.requests.metadata import SampleRequest as SampleRequest
from queryserver.schemas.requests.statements import HISTORY_LIMIT_MAX as HISTORY_LIMIT_MAX
from queryserver.schemas.requests.statements import KEY_MAX as KEY_MAX
from queryserver.schemas.requests.statements import KEY_RULE as KEY_RULE
from queryserver.schemas.requests.statements import PAGE_MAX as PAGE_MAX
from queryserver.schemas.requests.statements import CheckStatusRequest as CheckStatusRequest
from queryserver.schemas.requests.statements import CloseSessionRequest as CloseSessionRequest
from queryserver.schemas.requests.statements import CreateNotebookRequest as CreateNotebookRequest
from queryserver.schemas.requests.statements import DownloadParameters as DownloadParameters
from queryserver.schemas.requests.statements import EndRequest as EndRequest
from queryserver.schemas.requests.statements import EventsParameters as EventsParameters
from queryserver.schemas.requests.statements import ExecuteRequest as ExecuteRequest
from queryserver.schemas.requests.statements import FetchRequest as FetchRequest
from queryserver.schemas.requests.statements import HistoryParameters as HistoryParameters
from queryserver.schemas.requests.statements import IdempotencyHeader as IdempotencyHeader
from queryserver.schemas.requests.statements import LogsRequest as LogsRequest
from queryserver.schemas.requests.statements import OperationRequest as OperationRequest
from queryserver.schemas.requests.statements import SessionRequest as SessionRequest
from queryserver.schemas.requests.statements import parse as parse
from queryserver.schemas.requests.statements import query_parameters as query_parameters
