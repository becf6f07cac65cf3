"""Rules for all responses: documented shape, common headers, and no internal details."""

import json
import re
from collections.abc import Collection
from functools import cache
from typing import Any

import httpx
from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel, ValidationError
from scripts.export_openapi import TARGET
from tests.operations import Operation, read_operations, shape

from queryserver.api.schemas import generated

# Responses must not reveal these internal details (Contract editor 1.3, security).
INSIDE = re.compile(
    r"Traceback|File \"|\.py\b|site-packages|/tmp/|/home/|/var/|[a-z0-9+]+://[^\s/]*@|127\.0\.0\.1|planted-secret"
    # Only whole words match, because a random id in base64 may contain the four letters of a driver.
    r"|\b(?:asyncpg|sqlalchemy|aiosqlite|apsw|_duckdb|pyarrow)\b"
)

TIMES = ("submitted", "started", "ended", "elapsed_ms", "queued_ms", "queue_position")
"""Keys of the timing fields in query_status, history and get_logs responses."""

_UNCACHED = re.compile("/api/v1/|/api/token/|/notebook/api/")
_IMPORTER = "/api/v1/importer/"
_TOKENS = ("/api/v1/token/", "/api/token/")
_SESSIONS = re.compile("/api/v1/token/(session|oidc)(/|$)")
"""The only calls whose responses may set a cookie (Contract platform 3.11, 3.12)."""

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def _is_time(value: str) -> bool:
    return bool(_RFC_3339.fullmatch(value))


# The `{nested}` parameter may span several path segments.
_PARAMETERS = {"{nested}": r".+"}


def _pattern(template: str) -> re.Pattern[str]:
    path, _, argument = re.sub(r"\{(\w+):\w+\}", r"{\1}", template).partition("={")
    parts = [
        _PARAMETERS.get(part, r"[^/]*") if part.startswith("{") else re.escape(part)
        for part in path.rstrip("/").split("/")
    ]
    return re.compile("/".join(parts) + ("=.*" if argument else ""))


# Literal path segments take precedence over parameters.
_OPERATIONS = [
    (one.method, _pattern(path), one)
    for one in sorted(read_operations(), key=lambda one: one.path.count("{"))
    for path in (one.path, *one.also)
]


def operation_of(method: str, path: str) -> Operation | None:
    """Return the row of the operations table that matches the call, or None if no row matches."""
    method, path = ("GET" if method == "HEAD" else method), path.rstrip("/")
    return next((one for verb, pattern, one in _OPERATIONS if verb == method and pattern.fullmatch(path)), None)


def require_contract(response: httpx.Response) -> None:
    """Check that the response conforms to the operations table and to the rules for all responses."""
    request = response.request
    path = request.url.raw_path.partition(b"?")[0].decode()
    _require_headers(response, path)
    if request.method == "HEAD" or response.status_code == 204:
        assert response.content == b""
        return
    if response.status_code >= 400:
        _require_declared(response, path)
        _require_shape(response, _failures(response, path))
        assert not INSIDE.search(response.text), response.text
        return
    operation = operation_of(request.method, path)
    assert operation is not None, f"{request.method} {path} is no call of the table"
    assert response.status_code in {operation.http, *operation.other_statuses}
    if operation.response:
        _require_shape(response, list(operation.response))
        body = response.json()
        if isinstance(body, dict) and body.get("status", 0) != 0:
            assert not INSIDE.search(response.text), response.text


@cache
def _described_statuses() -> dict[tuple[str, str], set[str]]:
    """Return the documented statuses of each operation by `Operation.key`."""
    paths = json.loads(TARGET.read_text(encoding="utf-8"))["paths"]
    return {
        (method.upper(), shape(path)): set(call["responses"])
        for path, item in paths.items()
        for method, call in item.items()
    }


def _require_declared(response: httpx.Response, path: str) -> None:
    """Check that the API description of the call declares the response's status."""
    operation = operation_of(response.request.method, path)
    statuses = _described_statuses().get(operation.key) if operation else None
    assert statuses is None or str(response.status_code) in statuses, (
        f"{response.request.method} {path}: failures({response.status_code}) is missing"
    )


def _failures(response: httpx.Response, path: str) -> list[str]:
    """Return the names of the models that the body of an error response may match."""
    if response.status_code == 401:
        return ["Unauthorized"]
    if path.startswith(_TOKENS):
        return ["FieldErrors", "ErrorBody"]
    if path.startswith(_IMPORTER) and response.status_code != 404:
        return ["ImporterError"]
    operation = operation_of(response.request.method, path)
    if operation and "BulkResponse" in operation.response:
        return ["ErrorBody", "BulkResponse"]
    is_ready = path.rstrip("/") == "/desktop/debug/is_ready" and response.status_code == 503
    return ["NotReadyResponse"] if is_ready else ["ErrorBody"]


def _require_headers(response: httpx.Response, path: str) -> None:
    headers = response.headers
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", headers["x-request-id"])
    assert headers["x-content-type-options"] == "nosniff"
    assert not [name for name in headers if name.startswith("access-control-")]
    assert "set-cookie" not in headers or _SESSIONS.search(path)
    # A file download has its own Cache-Control rule. A failed download follows the common rule.
    own = path.startswith("/api/v1/storage/download") and response.status_code in {200, 206, 304}
    assert headers.get("cache-control") == ("private, no-cache" if own else "no-store") or not _UNCACHED.search(path)
    if response.status_code == 401:
        assert headers.get_list("www-authenticate")[0] == 'Bearer realm="api"'
    if response.status_code in {429, 503}:
        assert int(headers["retry-after"]) >= 1
    if response.status_code == 405:
        assert headers["allow"]


def require_shape(models: Collection[type[BaseModel]], body: Any) -> None:
    """Check that the body matches one of the models, with exactly its keys and types."""
    names = " or ".join(model.__name__ for model in models)
    assert any(_fits(model, body) for model in models), f"no {names}: {body}"


def _require_shape(response: httpx.Response, names: list[str]) -> None:
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.content)
    require_shape([getattr(generated, name) for name in names], body)
    # Token and importer responses have no `status` field, except for 404 responses to unknown paths.
    without = response.url.path.startswith((*_TOKENS, _IMPORTER)) and response.status_code != 404
    if isinstance(body, dict) and response.status_code != 401 and not without:
        assert type(body["status"]) is int


def _fits(model: type[BaseModel], body: Any) -> bool:
    """Return whether the body has exactly the model's keys and types. Its enumerated values and time formats must be
    allowed by the model's schema.
    """
    try:
        read = model.model_validate(body, strict=True)
    except ValidationError:
        return False
    return json.loads(read.model_dump_json()) == body and _validator(model).is_valid(body)


@cache
def _validator(model: type[BaseModel]) -> Draft202012Validator:
    """Return a validator for the model's schema, which enumerates the allowed values for clients. The model itself
    accepts any string.
    """
    schema = model.model_json_schema(mode="serialization")
    return Draft202012Validator(schema, formats={"date-time": _is_time}, validate_formats=True)
