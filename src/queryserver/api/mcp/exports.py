"""Tool that exports a stored result (Contract mcp 3.9)."""

from typing import Annotated, Any, Literal

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from pydantic import Field

from queryserver.api.mcp.sizes import CompactModel
from queryserver.api.mcp.tools import ToolCall, ToolContext, add_tool
from queryserver.api.schemas.fields import parse
from queryserver.api.schemas.requests import exports as requests
from queryserver.exports.submission import ExportRequest
from queryserver.identity.model import Scope
from queryserver.statements.status import parse_operation_id

_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)


class StartedExport(CompactModel):
    """An export that runs as an operation of its own."""

    operation_id: str = Field(description="The operation of the export, for get_status and cancel.")
    path: str | None = Field(default=None, description="The file, as a complete path.")
    table: str | None = Field(default=None, description="The table that receives the rows.")
    is_replay: bool = Field(default=False, description="Whether an earlier call with this idempotency_key started it.")


def register(server: MCPServer[Any]) -> None:
    """Add the tools of this file to the server."""
    add_tool(
        server,
        export_result,
        title="Export a result",
        description=(
            "Write a stored result, with all its rows, into a file of a store or into a table. Use it for results that"
            " are too large to read here. It returns at once; get_status with the returned operation_id reports the"
            " end, and get_result then returns one row with the number of rows and bytes. A file or table appears"
            " whole or not at all. Needs the right to download, an API token with the scope query, and the right to"
            " write at the target. Nothing is replaced unless if_exists says so."
        ),
        annotations=_WRITES,
        scope=Scope.QUERY,
    )


async def export_result(
    context: ToolContext,
    operation_id: Annotated[str, Field(description="The operation whose result is exported. It may still run.")],
    path: Annotated[
        str | None,
        Field(
            description="A file, such as file:///shared/sales.csv.gz or s3a://bucket/sales.parquet; its folder must"
            " exist. Give either path, or connector and table."
        ),
    ] = None,
    format: Annotated[  # noqa: A002 the name in the API
        Literal["csv", "tsv", "xlsx", "parquet", "arrow", "feather", "ndjson"] | None,
        Field(description="Format of the file. Default: the one that the ending of path denotes."),
    ] = None,
    connector: Annotated[str | None, Field(description="Name of the connector of the table.")] = None,
    database: Annotated[str | None, Field(description="Database or schema of the table.")] = None,
    table: Annotated[str | None, Field(description="Table that receives the rows.")] = None,
    if_exists: Annotated[
        Literal["error", "append", "replace"],
        Field(description="If the target exists: fail, add the rows (tables only), or replace it."),
    ] = "error",
    allow_truncated: Annotated[
        bool, Field(description="Also export a result of which the server has stored only the first rows.")
    ] = False,
    idempotency_key: Annotated[
        str | None, Field(description="A repeated call with the same key returns the same export.")
    ] = None,
) -> StartedExport:
    call = ToolCall.of(context)
    source = parse_operation_id(operation_id)
    # An unknown operation has the same answer, whatever the other arguments.
    await call.services.statements.access.result_record(call.user, source)
    fields = {
        "operationId": operation_id,
        "path": path,
        "format": format,
        "connector": connector,
        "database": database,
        "table": table,
        "if_exists": if_exists,
        "allow_truncated": allow_truncated,
        "client_request_id": idempotency_key,
    }
    request = parse(requests.ExportRequest, fields)
    exporting = call.services.exporting
    destination = exporting.target(call.user, request.requested())
    recorded = await exporting.submissions.submit(
        call.user,
        ExportRequest(
            source, destination, allow_truncated=request.allow_truncated, idempotency_key=request.idempotency_key(None)
        ),
    )
    return StartedExport(
        operation_id=str(recorded.record.status.id),
        path=destination.path if table is None else None,
        table=None if table is None else destination.path,
        is_replay=recorded.is_replay,
    )
