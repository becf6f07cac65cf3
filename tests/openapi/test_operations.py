"""The endpoint tables: complete, consistent, and the same as the routes of the app."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import yaml
from fastapi import APIRouter, FastAPI, Response
from scripts.check_operations import (
    RESOURCES,
    SERVED,
    Declared,
    Operation,
    differences,
    read_operations,
    routes_of,
    shape,
)
from scripts.describe_api import described_application

from queryserver.api.schemas import requests
from queryserver.api.schemas.fields import Fields
from queryserver.api.schemas.generated import ErrorBody, StatusResponse

OPERATIONS = read_operations()
SCHEMAS = yaml.load(RESOURCES.read_bytes(), Loader=yaml.CSafeLoader)["components"]["schemas"]

# Spec 4, endpoint tables and liveness, in their order.
SPECIFIED = [
    "POST /api/v1/token/auth/",
    "POST /api/v1/token/verify/",
    "POST /api/v1/token/refresh/",
    "POST /api/v1/editor/execute/{dialect}",
    "POST /api/v1/editor/check_status",
    "POST /api/v1/editor/fetch_result_data",
    "POST /api/v1/editor/get_logs",
    "POST /api/v1/editor/autocomplete/",
    "POST /api/v1/editor/autocomplete/{db}/",
    "POST /api/v1/editor/autocomplete/{db}/{table}/",
    "POST /api/v1/editor/autocomplete/{db}/{table}/{col}/",
    "POST /api/v1/editor/describe/{db}/",
    "POST /api/v1/editor/describe/{db}/{table}/",
    "POST /api/v1/{dialect}/analyze/{db}/{table}/",
    "POST /api/v1/{dialect}/analyze/{db}/{table}/{col}/",
    "POST /api/v1/editor/sample/{db}/{table}/",
    "POST /api/v1/editor/sample/{db}/{table}/{col}/",
    "GET /api/v1/editor/get_history",
    "POST /api/v1/query/create_notebook",
    "POST /api/v1/editor/create_notebook",
    "POST /api/v1/query/autocomplete",
    "POST /api/v1/query/{dialect}",
    "POST /api/v1/get_config/",
    "GET /api/v1/storage/filesystems",
    "GET /api/v1/storage/view={path}",
    "GET /api/v1/storage/download={path}",
    "POST /api/v1/storage/upload/file",
    "POST /api/v1/storage/mkdir",
    "POST /api/v1/storage/touch",
    "POST /api/v1/storage/rename",
    "POST /api/v1/storage/move",
    "POST /api/v1/storage/copy",
    "GET /api/v1/storage/content_summary={path}",
    "POST /api/v1/storage/rmtree",
    "POST /api/v1/storage/set_replication",
    "POST /api/v1/storage/trash/restore",
    "POST /api/v1/storage/trash/purge",
    "POST /api/v1/importer/upload/file/",
    "GET /api/v1/importer/file/guess_metadata/",
    "GET /api/v1/importer/file/guess_header/",
    "GET /api/v1/importer/file/preview/",
    "GET /api/v1/importer/sql_type_mapping/",
    "GET /api/v1/connector/instances",
    "GET /api/v1/connector/types",
    "POST /api/v1/connector/instance/new/{dialect}/{interface}",
    "GET /api/v1/connector/instance/get/{id}",
    "POST /api/v1/connector/instance/update",
    "POST /api/v1/connector/instance/delete",
    "POST /api/v1/connector/instance/test/",
    "POST /api/v1/connector/examples/install/",
    "POST /api/v1/connectors/types/",
    "GET /api/v1/iam/get_users",
    "GET /api/v1/iam/users",
    "GET /api/v1/iam/users/autocomplete",
    "POST /api/v1/metadata/search/entities_interactive/",
    "GET /desktop/debug/is_alive",
]

GROUPS = {
    "token", "editor", "query", "dialect", "get_config", "context", "storage", "importer", "connector", "iam",
    "metadata", "optimizer", "taskserver", "admin", "debug", "description",
}  # fmt: skip


def row(**changes: Any) -> Operation:
    plain = Operation(
        method="POST",
        path="/api/v1/x/{id}",
        group="editor",
        request=(),
        response=frozenset({"StatusResponse"}),
        http=200,
        rights="user",
        scope="query",
        error_style="editor",
        source="Contract editor 1",
        status=SERVED,
    )
    return replace(plain, **changes)


def app_with(path: str, model: object) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @app.post(path, response_model=model, responses={404: {"model": ErrorBody}})
    async def answer() -> None: ...

    return app


class TestTable:
    def test_every_endpoint_of_the_specification_is_a_row(self):
        rows = {operation.key for operation in OPERATIONS if operation.source.startswith("Spec 4")}
        assert rows == {(method, shape(path)) for method, path in (line.split() for line in SPECIFIED)}

    def test_no_call_is_listed_twice(self):
        assert [key for key, count in Counter(operation.key for operation in OPERATIONS).items() if count > 1] == []

    @pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: " ".join(operation.key))
    def test_rows_use_the_words_of_the_table_and_known_shapes_or_media_types(self, operation: Operation):
        assert operation.method in {"GET", "POST", "DELETE"}
        assert operation.group in GROUPS
        assert operation.rights in {"public", "user", "admin", "network"}
        assert operation.error_style in {"editor", "platform", "token", "importer", "storage"}
        assert operation.status in {SERVED, "planned"}
        assert operation.http in {200, 201, 202}
        assert operation.source.startswith(("Spec 4", "Contract ", "ADR "))
        assert [name for name in operation.response if "/" not in name and name not in SCHEMAS] == []

    @pytest.mark.parametrize(
        "operation", [one for one in OPERATIONS if isinstance(one.request, str)], ids=lambda one: " ".join(one.key)
    )
    def test_request_models_exist(self, operation: Operation):
        assert issubclass(getattr(requests, operation.request), Fields)


class TestComparison:
    def test_equal_sides_have_no_difference(self):
        assert differences([row()], routes_of(app_with("/api/v1/x/{name}", StatusResponse))) == []

    def test_several_answers_are_compared_as_a_set(self):
        app = app_with("/api/v1/x/{id}", StatusResponse | ErrorBody)
        assert differences([row(response=frozenset({"ErrorBody", "StatusResponse"}))], routes_of(app)) == []

    def test_each_difference_is_told(self):
        route = routes_of(app_with("/api/v1/x/{id}", StatusResponse))
        other_answer = routes_of(app_with("/api/v1/x/{id}", ErrorBody))
        other_body = {row().key: Declared(frozenset({"StatusResponse"}), body="FetchRequest")}
        for rows, routes, told in (
            ([row()], {}, "served in the table, but no route"),
            ([row(status="planned")], route, "planned in the table, but a route"),
            ([], route, "a route, but not in the table"),
            ([row()], other_answer, "the table answers StatusResponse, the app ErrorBody"),
            ([row(request="LogsRequest")], other_body, "the table takes LogsRequest, the app FetchRequest"),
        ):
            assert differences(rows, routes) == [f"POST /api/v1/x/{{}}: {told}"]

    def test_each_call_has_one_scope_that_fits_its_rights(self):
        route = routes_of(app_with("/api/v1/x/{id}", StatusResponse))
        for changed, told in (
            ({"scope": ""}, "has the scope nothing, which is none of admin, files:read"),
            ({"scope": "query import"}, "has the scope query import, which is none of"),
            ({"rights": "public"}, "reads no token, but needs the scope query"),
            ({"rights": "admin"}, "is for administrators, but needs the scope query"),
            ({"rights": "admin", "scope": "none"}, "is for administrators, but needs the scope none"),
        ):
            [found] = differences([row(**changed)], route)
            assert found.startswith(f"POST /api/v1/x/{{}}: {told}")

    def test_other_query_parameters_are_told(self):
        asked = row(method="GET", request="EventsParameters")
        assert differences([asked], {asked.key: Declared(asked.response, query=frozenset({"log_from"}))}) == []
        found = differences([asked], {asked.key: Declared(asked.response, query=frozenset({"from"}))})
        assert found == ["GET /api/v1/x/{}: the table takes log_from, the app from"]

    def test_media_types_are_compared_without_their_parameters(self):
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        content = {"text/csv; charset=utf-8": {"schema": {"type": "string"}}}
        app.add_api_route("/file", lambda: None, response_class=Response, responses={200: {"content": content}})
        assert routes_of(app) == {("GET", "/file"): Declared(frozenset({"text/csv"}))}

    def test_routes_outside_the_document_are_found_too(self):
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        router = APIRouter()
        router.add_api_route("/hidden/{name:path}", lambda: None, include_in_schema=False)
        app.include_router(router, prefix="/api")
        assert routes_of(app) == {("GET", "/api/hidden/{}"): None}


def test_table_and_app_agree_both_ways():
    assert differences(OPERATIONS, routes_of(described_application())) == []
