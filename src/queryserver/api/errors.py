"""Maps domain errors to HTTP responses."""

import math
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from queryserver import errors
from queryserver.errors.base import QueryServerError

CHALLENGE = 'Bearer realm="api"'

STATUS: Mapping[type[QueryServerError], int] = {
    errors.NotAuthenticated: 401,
    errors.PermissionDenied: 403,
    errors.InvalidRequest: 400,
    errors.PayloadTooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.TooManyRequests: 429,
    errors.NotSupported: 501,
    errors.BodyTooSlow: 408,
    errors.RangeNotSatisfiable: 416,
    errors.VerificationFailed: 422,
    errors.EngineForbidden: 403,
    errors.EngineUnavailable: 503,
    errors.EngineTimeout: 503,
    errors.EngineError: 200,
    errors.StorageUnavailable: 503,
    errors.InsufficientStorage: 507,
    errors.StorageError: 502,
    errors.ServiceUnavailable: 503,
    errors.SchemaMismatch: 500,
    errors.ConfigurationError: 500,
    QueryServerError: 500,
}
"""HTTP status by error class. A class that is not listed has the status of its nearest base class."""

BODY_STATUS: Mapping[type[QueryServerError], int] = {
    errors.OperationNotFound: 2,
    errors.MetadataNotFound: 1,
    errors.NotSupported: 5,
    errors.CredentialsRequired: 401,
    errors.EngineTimeout: -4,
    errors.EngineUnavailable: -1,
    errors.EngineError: 1,
}
"""`status` in the response body by error class, if it is not -1 (Contract editor 1.4)."""

_RETRY_AFTER_S = 5


def respond(request: Request, error: QueryServerError, *, plain: bool = False) -> Response:
    """Return the response for `error`. If `plain` is set, `status` in the body is always -1 (Contract storage 3)."""
    if isinstance(error, errors.NotAuthenticated):
        return _unauthorized(error)
    if isinstance(error, errors.InvalidFields):
        return json_response(error.fields, 400)
    status = http_status(error)
    if status == 500:
        return internal_error(request)
    body = body_of(error)
    if plain:
        body["status"] = -1
    return json_response(body, status, headers_of(error, status))


def http_status(error: QueryServerError) -> int:
    if isinstance(error, errors.DownloadRefused) and error.gone:
        return 410
    return _nearest(STATUS, error, 500)


def body_of(error: QueryServerError) -> dict[str, Any]:
    """Return the body of a failed call (Contract editor 1.5, platform 1.4)."""
    if isinstance(error, errors.DownloadRefused):
        return {"status": error.status, "code": error.outcome_code, "message": error.message}
    body: dict[str, Any] = {"status": _nearest(BODY_STATUS, error, -1), "code": error.code, "message": error.message}
    if isinstance(error, errors.TooManyRequests):
        body["retry_after"] = _whole_seconds(error.retry_after.total_seconds())
    if error.details is not None:
        body["details"] = dict(error.details)
    return body | dict(error.extra_fields)


def internal_error(request: Request) -> Response:
    """Return the response to an internal error. It reveals only the id of the log entry."""
    body = {"status": -1, "code": "internal_error", "message": "Internal error."}
    return json_response({**body, "error_id": request.scope.get("request_id", "")}, 500)


def failure(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response to a failure that is not a domain error, such as an unknown path."""
    return json_response({"status": -1, "code": code, "message": message}, status, headers)


def wrong_method(allow: str) -> Response:
    """Return the response to a method that the path does not support. `allow` lists the supported methods."""
    return failure(405, "method_not_allowed", f"Use {allow}.", {"Allow": allow})


def headers_of(error: QueryServerError, status: int) -> Mapping[str, str]:
    """Return the headers that the response to a failed call has in addition to the headers of all responses."""
    if isinstance(error, errors.InsufficientScope):
        return {"WWW-Authenticate": f'{CHALLENGE}, error="insufficient_scope", scope="{error.scope}"'}  # RFC 6750, 3.1
    if isinstance(error, errors.TooManyRequests):
        return {"Retry-After": str(_whole_seconds(error.retry_after.total_seconds()))}
    if isinstance(error, errors.LateBody | errors.BodyTooSlow):
        return {"Connection": "close"}
    if isinstance(error, errors.RangeNotSatisfiable):
        return {"Content-Range": f"bytes */{error.size_bytes}"}
    return {"Retry-After": str(_RETRY_AFTER_S)} if status == 503 else {}


def _unauthorized(error: errors.NotAuthenticated) -> Response:
    body: dict[str, Any] = {"detail": error.message}
    if isinstance(error, errors.InvalidToken):
        token_class = f"{error.token_type.capitalize()}Token"
        message = {"token_class": token_class, "token_type": error.token_type, "message": error.message}
        body = {"detail": error.detail, "code": error.code, "messages": [message]}
    elif isinstance(error, errors.AuthenticationFailed):
        if error.shown_code is not None:
            body["code"] = error.shown_code
    elif error.code != errors.NotAuthenticated.code:
        body["code"] = error.code
    response = json_response(body, 401, {"WWW-Authenticate": CHALLENGE})
    for challenge in error.challenges:
        response.headers.append("WWW-Authenticate", challenge)
    return response


def _nearest(table: Mapping[type[QueryServerError], int], error: QueryServerError, default: int) -> int:
    return next((table[kind] for kind in type(error).__mro__ if kind in table), default)


def _whole_seconds(seconds: float) -> int:
    return max(math.ceil(seconds), 1)


def json_response(body: object, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with `body` as JSON."""
    return Response(orjson.dumps(body), status, dict(headers or {}), "application/json")
