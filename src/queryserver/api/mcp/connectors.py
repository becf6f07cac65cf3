"""Tool that lists the data sources of a caller (Contract mcp 3.1)."""

from typing import Any

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel, Field

from queryserver.api.mcp.tools import ToolCall, ToolContext, add_tool
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import takes_sql
from queryserver.errors.base import QueryServerError
from queryserver.services import Services


class ConnectorEntry(BaseModel):
    """A data source."""

    name: str = Field(description="The value for the argument `connector` of other tools.")
    title: str
    dialect: str = Field(description="The SQL dialect, such as postgresql, trino, hive or duckdb.")
    is_default: bool = Field(description="Whether run_sql uses it if the call names no connector.")
    read_only: bool = Field(description="Whether it refuses every statement that may change data.")
    reads_results: bool = Field(description="Whether its SQL may read stored results: FROM 'result://<operation_id>'.")
    statement_timeout_s: int = Field(description="Seconds after which a statement is stopped.")


class ConnectorList(BaseModel):
    connectors: list[ConnectorEntry]


def register(server: MCPServer[Any], services: Services) -> None:
    """Add the tools of this file to the server."""
    del services  # no limits in the description
    add_tool(
        server,
        list_connectors,
        title="List data sources",
        description=(
            "List the data sources that you may query: name, SQL dialect, limits. The list is complete; it has no"
            " pages. Call it first, because other tools need a connector's name."
        ),
    )


async def list_connectors(context: ToolContext) -> ConnectorList:
    call = ToolCall.of(context)
    registry, user = call.services.connectors, call.user
    default = registry.default_sql(user)
    return ConnectorList(
        connectors=[
            _entry(call.services, one, is_default=default is not None and one.key == default.key)
            for one in registry.visible(user)
            if takes_sql(one)
        ]
    )


def reads_results(services: Services, connector: Connector) -> bool:
    """Return whether SQL on the connector may read stored results. False if the connector cannot run here."""
    try:
        return services.connectors.engine(connector).capabilities.reads_results
    except QueryServerError:
        return False


def _entry(services: Services, connector: Connector, *, is_default: bool) -> ConnectorEntry:
    return ConnectorEntry(
        name=connector.reference,
        title=connector.nice_name,
        dialect=connector.dialect,
        is_default=is_default,
        read_only=connector.read_only,
        reads_results=reads_results(services, connector),
        statement_timeout_s=int(connector.limits.statement_timeout.total_seconds()),
    )
