"""The mapping of domain errors to importer responses (Contract importer 2.1, 2.2)."""

from datetime import timedelta

import orjson
import pytest
from starlette.requests import Request

from queryserver import errors
from queryserver.api.v1 import importer
from queryserver.api.v1.importer import ImporterRoute
from queryserver.errors.base import QueryServerError

REQUEST = Request({"type": "http", "method": "GET", "path": "/", "headers": []})


def route(name: str) -> ImporterRoute:
    """Return the importer route of the operation called `name`."""
    routes = (*importer.router.routes, *importer.detection_router.routes)
    return next(one for one in routes if isinstance(one, ImporterRoute) and one.name == name)


UPLOAD = route("upload_import_file")


@pytest.mark.importer(2)
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.ImporterDenied("no"), 403, "permission_denied"),
        (errors.storage_access_denied("no"), 400, "permission_denied"),
        (errors.import_file_denied("no"), 400, "permission_denied"),
        (errors.EngineForbidden("no"), 400, "permission_denied"),
        (errors.PayloadTooLarge("no"), 400, "payload_too_large"),
        (errors.too_many_parts("no"), 400, "too_many_parts"),
        (errors.UnsupportedMediaType("no"), 400, "unsupported_media_type"),
        (errors.BodyTooSlow("no"), 400, "request_timeout"),
        (errors.LateBody(), 400, "invalid_body"),
        (errors.upload_aborted("no"), 400, "invalid_body"),
        (errors.InvalidName("no"), 400, "invalid_parameter"),
        (errors.InvalidPath("no"), 400, "invalid_parameter"),
        (errors.NotAFile("no"), 400, "invalid_parameter"),
        (errors.InvalidJson("no"), 400, "invalid_json"),
        (errors.PathNotFound("no"), 400, "file_not_found"),
        (errors.import_file_not_found(), 400, "file_not_found"),
        (errors.FileTooComplex("no"), 400, "file_too_complex"),
        (errors.upload_quota_exceeded("no"), 400, "quota_exceeded"),
        (errors.EntryChanged("no"), 400, "file_not_found"),
        (errors.StatementRejected("no"), 400, "engine_error"),
        (errors.TooManyStreams("no"), 429, "too_many_requests"),
        (errors.too_many_statements("no"), 429, "too_many_statements"),
        (errors.quota_exceeded("no"), 429, "too_many_requests"),
        (errors.StorageUnavailable("no"), 500, "storage_unavailable"),
        (errors.StorageError("no"), 500, "storage_unavailable"),
        (errors.DatabaseUnavailable(), 500, "database_unavailable"),
        (errors.stopping("no"), 503, "stopping"),
        (errors.EngineUnavailable("no"), 500, "engine_unavailable"),
        (errors.DetectionFailed("no"), 500, "detection_error"),
    ],
    ids=lambda value: value.code if isinstance(value, QueryServerError) else str(value),
)
def test_each_error_maps_to_an_importer_status(error: QueryServerError, status: int, code: str) -> None:
    answer = UPLOAD.failure(REQUEST, error)
    assert answer.status_code == status
    assert orjson.loads(answer.body) == {"error": error.message, "code": code}


@pytest.mark.importer(2)
def test_internal_errors_reveal_no_details() -> None:
    for code, one in (("internal_error", UPLOAD), ("detection_error", route("guess_file_metadata"))):
        told = {"error": "Internal error.", "code": code}
        for answer in (one.failure(REQUEST, errors.SchemaMismatch("secret")), one.internal_error(REQUEST)):
            assert (answer.status_code, orjson.loads(answer.body)) == (500, told)


def test_rate_limit_sets_retry_after() -> None:
    answer = UPLOAD.failure(REQUEST, errors.TooManyStreams("no", retry_after=timedelta(seconds=2.5)))
    assert answer.headers["retry-after"] == "3"


def test_slow_upload_body_closes_its_connection() -> None:
    assert UPLOAD.failure(REQUEST, errors.BodyTooSlow("no")).headers["connection"] == "close"


def test_unauthenticated_callers_get_the_common_response() -> None:
    answer = UPLOAD.failure(REQUEST, errors.NotAuthenticated("no"))
    assert (answer.status_code, orjson.loads(answer.body)) == (401, {"detail": "no"})


@pytest.mark.importer(2)
def test_wrong_method_has_an_importer_body() -> None:
    answer = UPLOAD.wrong_method("GET")
    assert orjson.loads(answer.body) == {"error": "Use GET.", "code": "method_not_allowed"}
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
