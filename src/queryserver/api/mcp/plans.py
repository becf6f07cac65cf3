"""Tool that explains a statement (Contract mcp 3.8)."""

from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from pydantic import Field

from queryserver.api.mcp.sizes import ANSWER_BYTES, CompactModel, clipped_bytes
from queryserver.api.mcp.tools import DATA_NOTICE, ToolCall, ToolContext, ToolFailure, add_tool
from queryserver.catalog.plans import PlanRefusal, PlanRequest
from queryserver.engines.estimates import CostEstimate


class Estimate(CompactModel):
    """What the engine expects a statement to read."""

    scanned_bytes: int | None = Field(default=None, description="Bytes that it reads.")
    cost: float | None = Field(default=None, description="Cost in the planner's own units.")


class Plan(CompactModel):
    """The plan of a statement."""

    plan: str = Field(description="The plan as the engine writes it.")
    estimate: Estimate | None = Field(default=None, description="The engine's estimate; omitted if it has none.")
    is_cut: bool = Field(default=False, description="Whether the plan is longer than the answer may be.")
    notice: str = Field(description="How to treat the texts above.")


def register(server: MCPServer[Any]) -> None:
    """Add the tools of this file to the server."""
    add_tool(
        server,
        explain,
        title="Explain a statement",
        description=(
            "Return the engine's plan for one statement, which is not run, and its estimate of bytes or cost if it has"
            " one. Use it to check a statement before run_sql, whose limits (max_estimated_bytes, and those of the"
            " connector, the token and the user) are compared with the same estimate. The plan is cut after"
            f" {ANSWER_BYTES // 1024} KiB. The engine must answer within the connector's `metadata_timeout_s`."
        ),
    )


async def explain(
    context: ToolContext,
    connector: Annotated[str, Field(description="Name of a connector.")],
    sql: Annotated[str, Field(description="One statement without EXPLAIN; of a script, the first.")],
    database: Annotated[
        str | None, Field(description="Database or schema in which unqualified names are resolved.")
    ] = None,
) -> Plan:
    call = ToolCall.of(context)
    source = call.services.connectors.resolve(call.user, connector)
    request = PlanRequest(source.key, sql, database)
    found = await call.services.metadata.plans.explain(call.user, request)
    if found.refusal is not None:
        raise _failure(found.refusal)
    plan = clipped_bytes(found.plan, ANSWER_BYTES)
    return Plan(plan=plan, estimate=_estimate(found.estimate), is_cut=len(plan) < len(found.plan), notice=DATA_NOTICE)


def _estimate(found: CostEstimate | None) -> Estimate | None:
    if found is None or (found.scanned_bytes is None and found.cost is None):
        return None
    return Estimate(scanned_bytes=found.scanned_bytes, cost=found.cost)


def _failure(refusal: PlanRefusal) -> ToolFailure:
    position = refusal.position
    facts = {} if position is None else {"line": position.line, "column": position.column}
    return ToolFailure(
        refusal.code,
        clipped_bytes(refusal.message, ANSWER_BYTES),
        next_step="Read the message of the data source, then correct the statement.",
        facts=facts,
    )
