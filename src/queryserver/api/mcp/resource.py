"""Protected-resource metadata of `/mcp` (RFC 9728), from which clients find the external issuer (Contract mcp 1.3)."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from queryserver.api.dependencies import services_of
from queryserver.api.errors import CHALLENGE
from queryserver.api.origins import root_url
from queryserver.platform.settings.tree import Settings

METADATA_PATH = "/.well-known/oauth-protected-resource/mcp"


def issuer_of(settings: Settings) -> str | None:
    """Return the URL of the external issuer whose tokens are accepted, or None if there is none or any is accepted."""
    auth = settings.desktop.auth
    accepts = bool(auth.jwt.key_server_url) and (not auth.api_auth or "custom_jwt" in auth.api_auth)
    return auth.jwt.issuer if accepts and auth.jwt.issuer.startswith(("https://", "http://")) else None


def challenge(request: Request) -> str:
    """Return the `WWW-Authenticate` header of a 401 response, with the URL of the metadata if there is an issuer."""
    settings = services_of(request).settings
    if issuer_of(settings) is None:
        return CHALLENGE
    return f'{CHALLENGE}, resource_metadata="{_origin(request, settings)}{METADATA_PATH}"'


def metadata(request: Request) -> Mapping[str, Any] | None:
    """Return the metadata, or None if no external issuer is configured, or the endpoint is off."""
    settings = services_of(request).settings
    issuer = issuer_of(settings)
    if issuer is None or not settings.mcp.enabled:
        return None
    return {
        "resource": settings.mcp.resource_url or f"{_origin(request, settings)}/mcp",
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": settings.desktop.host_label or "Query Server",
    }


def _origin(request: Request, settings: Settings) -> str:
    """Return the URL of the root of this server as the client reached it, including the configured prefix."""
    if settings.mcp.resource_url:
        return settings.mcp.resource_url.rstrip("/").removesuffix("/mcp")
    return root_url(request, settings)
