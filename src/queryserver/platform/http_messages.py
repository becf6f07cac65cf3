"""Requests and responses of `http_client.py`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from queryserver.errors.statements import EngineUnavailable


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. `url` has no credentials, `max_bytes` limits the response, and `within_s` the whole exchange."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    content: bytes = b""
    max_bytes: int = 1024 * 1024
    within_s: float = 10.0


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response with any status code."""

    status: int
    content_type: str
    body: bytes


class NotConnected(EngineUnavailable):
    """An address that did not accept the connection. The host may have other addresses."""
