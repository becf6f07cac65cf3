"""The endpoint `/mcp` for agents: tools over the same services as the API (Contract mcp, ADR 96)."""

from queryserver.api.mcp.endpoint import McpEndpoint, mcp_routes

__all__ = ["McpEndpoint", "mcp_routes"]
