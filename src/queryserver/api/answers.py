"""Answers as bytes: models are written by pydantic's own serializer, without a second validation."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import Response
from pydantic import BaseModel

from queryserver.schemas.generated import ErrorBody, ImporterError, Unauthorized


def answer(model: BaseModel, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer from a wire model."""
    content = model.__pydantic_serializer__.to_json(model, by_alias=True)
    return Response(content, status, dict(headers or {}), "application/json")


def moment(time: datetime | None) -> str | None:
    """A UTC time as `2025-01-31T10:20:30Z` (Contract editor 1.3)."""
    if time is None:
        return None
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def milliseconds(time: datetime) -> int:
    """Epoch milliseconds, as in keys named `lastExecuted`."""
    return int(time.timestamp() * 1000)


_MEANING = {
    400: "The call is wrong as it stands.",
    401: "No credentials, or bad ones.",
    403: "The caller lacks a right.",
    404: "What was named does not exist, or the caller may not see it.",
    405: "The path has no such method.",
    409: "The state of the object forbids the call.",
    408: "The body arrives too slowly.",
    410: "The result is gone.",
    413: "The body, or what it asks for, is too large.",
    415: "This content type is not read.",
    416: "The range is outside the file.",
    422: "The bytes are not what they should be.",
    429: "A limit on this caller is reached.",
    500: "Something went wrong inside.",
    501: "This server or engine cannot do it.",
    502: "The store failed.",
    503: "Something that the service needs is out of reach.",
    507: "A disk of the server is almost full.",
}


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The failure answers of an operation, for the API description; 401, 405, 500 and 503 go without saying."""
    return refusals(401, 405, 500, 503, *statuses)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Failure answers for the API description, those that are named alone."""
    return {
        status: {"model": Unauthorized if status == 401 else ErrorBody, "description": _MEANING[status]}
        for status in sorted(set(statuses))
    }


def importer_failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The failure answers of a call of the importer (Contract importer 2.2), the usual ones and `statuses`."""
    return {
        status: {"model": Unauthorized if status == 401 else ImporterError, "description": _MEANING[status]}
        for status in sorted({400, 401, 403, 405, 500, *statuses})
    }


_SCHEMAS = {
    "application/json": {"type": "object"},
    "application/yaml": {"type": "object"},
    "application/zip": {"type": "string", "format": "binary"},
}


def gives(*media_types: str) -> dict[int | str, dict[str, Any]]:
    """What the API description says about a 200 answer that is no JSON model."""
    content = {kind: {"schema": _SCHEMAS.get(kind, {"type": "string"})} for kind in media_types}
    return {200: {"content": content, "description": "OK"}}


def accepts(model: type[BaseModel]) -> dict[str, Any]:
    """What the API description says about the body of an operation: form, multipart or JSON."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    kinds = ("application/x-www-form-urlencoded", "multipart/form-data", "application/json")
    return {"requestBody": {"content": {kind: {"schema": schema} for kind in kinds}}, "x-request-model": model.__name__}
