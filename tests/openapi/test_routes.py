"""The rows of operations.yaml are complete and consistent, and match the application's routes."""

import re
from collections import Counter

import pytest
from fastapi.routing import APIRoute
from scripts.api_texts import Row, rows
from starlette.routing import Match
from tests.operations import NO_SCOPE, shape

from queryserver.api.application import create_application, routes_of
from queryserver.api.dependencies import Caller, FieldsReader, caller_of, solved_order
from queryserver.identity.model import Scope

ROWS = list(rows().values())
ROUTES = routes_of(create_application())
STREAMED = {"upload_import_file"}
"""Operations whose handlers read the request body as a stream."""

# Spec §4, tables of endpoints and liveness calls, in the specified order.
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


def name_of(one: Row | APIRoute) -> str:
    methods = [one.method] if isinstance(one, Row) else one.methods or ()
    return f"{' '.join(methods)} {one.path}"


every_row = pytest.mark.parametrize("row", ROWS, ids=name_of)
every_route = pytest.mark.parametrize("route", ROUTES, ids=name_of)


class TestTable:
    def test_every_specified_endpoint_is_a_row(self):
        specified = {(row.method, shape(row.path)) for row in ROWS if row.source.startswith("Spec 4")}
        assert specified == {(method, shape(path)) for method, path in (line.split() for line in SPECIFIED)}

    def test_no_call_is_listed_twice(self):
        found = Counter((row.method, shape(path)) for row in ROWS for path in (row.path, *row.also))
        assert [key for key, count in found.items() if count > 1] == []

    @every_row
    def test_rows_use_the_table_vocabulary(self, row: Row):
        assert row.method in {"GET", "POST", "DELETE"}
        assert row.rights in {"public", "user", "admin", "network"}
        assert row.scope in {NO_SCOPE, *Scope}
        assert row.source.startswith(("Spec 4", "Contract ", "ADR "))

    @every_row
    def test_call_scope_matches_its_rights(self, row: Row):
        if row.rights in {"public", "network"}:
            assert row.scope == NO_SCOPE
        if row.rights == "admin":
            assert row.scope == Scope.ADMIN


class TestRoutes:
    def test_row_paths_and_routes_are_identical(self):
        paths = Counter((row.id, row.method, path) for row in ROWS for path in (row.path, *row.also))
        assert Counter((route.name, *(route.methods or ()), route.path) for route in ROUTES) == paths

    @every_route
    def test_main_path_is_described_and_alternatives_are_not(self, route: APIRoute):
        row = rows()[route.name]
        assert route.include_in_schema == (route.path == row.path and not row.hidden)

    @every_route
    def test_callers_have_the_rights_and_tokens_the_scope_of_the_row(self, route: APIRoute):
        row, caller = rows()[route.name], caller_of(route)
        if caller is None:
            assert (row.rights in {"public", "network"}, row.scope) == (True, NO_SCOPE)
        else:
            assert (row.rights, row.scope) == ("admin" if caller.is_admin else "user", caller.scope or NO_SCOPE)

    @every_route
    def test_caller_is_authenticated_before_body_is_read(self, route: APIRoute):
        if caller_of(route) is None:
            return
        order = list(dict.fromkeys(solved_order(route.dependant)))
        (user,) = (place for place, one in enumerate(order) if isinstance(one, Caller))
        reading = [place for place, one in enumerate(order) if isinstance(one, FieldsReader)]
        assert len(reading) == (0 if route.name in STREAMED else 1)
        assert all(user < place for place in reading)

    @every_route
    def test_no_earlier_route_shadows_another(self, route: APIRoute):
        path = route.path.replace("{view:view}", "editor")
        path = re.sub(r"\{[^}]*\}", "predict", path)  # this value equals the name of an optimizer call
        for method in route.methods or ():
            scope = {"type": "http", "path": path, "method": method}
            assert next(one for one in ROUTES if one.matches(scope)[0] is Match.FULL) is route
