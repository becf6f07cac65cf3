"""The routes of importer calls, and the format of their failures (Contract importer 2.1, 2.2)."""

from collections.abc import Mapping
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from queryserver import errors
from queryserver.api.errors import headers_of, http_status, json_response, respond
from queryserver.api.routes import PlatformRoute
from queryserver.errors.base import QueryServerError

_BY_CLASS: Mapping[type[QueryServerError], tuple[int, str | None]] = {
    errors.ImporterDenied: (403, "permission_denied"),
    errors.InsufficientScope: (403, None),
    errors.PermissionDenied: (400, "permission_denied"),
    errors.EngineForbidden: (400, "permission_denied"),
    errors.PathNotFound: (400, "file_not_found"),
    errors.EntryChanged: (400, "file_not_found"),
    errors.TooManyRequests: (429, "too_many_requests"),
    errors.EngineUnavailable: (500, None),
    errors.EngineTimeout: (500, None),
    errors.EngineError: (400, None),
    errors.InsufficientStorage: (500, None),
    errors.StorageError: (500, "storage_unavailable"),
    errors.ServiceUnavailable: (500, None),
    errors.DetectionFailed: (500, None),
}
"""Status and code by error class, where they differ from STATUS; without a code, the error's own code."""

_BY_CODE: Mapping[str, tuple[int, str]] = {
    **dict.fromkeys(
        (
            *("invalid_path", "invalid_name", "unknown_scheme", "unknown_authority", "storage_not_configured"),
            *("not_a_directory", "not_a_file"),
        ),
        (400, "invalid_parameter"),
    ),
    "upload_aborted": (400, "invalid_body"),
    "too_many_statements": (429, "too_many_statements"),
    "stopping": (503, "stopping"),
}
"""Status and code for single error codes, which take precedence."""


class ImporterRoute(PlatformRoute):
    """A route whose failures have the importer's body, including failures for wrong methods."""

    internal_error_code: ClassVar[str] = QueryServerError.code

    def failure(self, request: Request, error: QueryServerError) -> Response:
        """Return the response to a failed call.

        Only 400, 403, 429 and 500 are used; errors with other statuses keep their code.
        """
        if isinstance(error, errors.NotAuthenticated | errors.InvalidFields):
            return respond(request, error)
        general = http_status(error)
        by_class = next((_BY_CLASS[kind] for kind in type(error).__mro__ if kind in _BY_CLASS), None)
        entry = _BY_CODE.get(error.code, by_class)
        if general == 500 and entry is None:
            return self.internal_error(request)
        status, code = entry or (400, None)
        return _response(status, code or error.code, error.message, headers_of(error, status))

    def internal_error(self, request: Request) -> Response:
        del request
        return _response(500, self.internal_error_code, "Internal error.")

    def wrong_method(self, allow: str) -> Response:
        return _response(405, "method_not_allowed", f"Use {allow}.", {"Allow": allow})


class DetectionRoute(ImporterRoute):
    """A route whose internal errors have the detection code."""

    internal_error_code = errors.DetectionFailed.code


def _response(status: int, code: str, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return json_response({"error": text, "code": code}, status, headers)
