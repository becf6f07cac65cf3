"""Requests and answers of `http_exchanges.py`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from queryserver.errors.statements import EngineUnavailable


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. `url` holds no login; `max_bytes` bounds the answer, `within_s` the whole exchange."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    content: bytes = b""
    max_bytes: int = 1024 * 1024
    within_s: float = 10.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer, with any status."""

    status: int
    content_type: str
    body: bytes


class NotConnected(EngineUnavailable):
    """The address took no connection; another one of the host may."""
