"""What the routes say of themselves is what the table of operations says."""

import re
from types import UnionType
from typing import get_args

import pytest
from fastapi.routing import APIRoute
from scripts.api_texts import rows
from starlette.routing import Match

from queryserver.api.application import create_application, routes_of
from queryserver.api.dependencies import Caller, FieldsReader, caller_of, solved_order

ROUTES = routes_of(create_application())
DESCRIBED = [route for route in ROUTES if route.include_in_schema]
STREAMED = {"upload_import_file"}
"""Their handlers read the body."""


def models(route: APIRoute) -> list[str]:
    model = route.response_model
    return [one.__name__ for one in (get_args(model) if isinstance(model, UnionType) else [model]) if one is not None]


def name_of(route: APIRoute) -> str:
    return f"{' '.join(sorted(route.methods))} {route.path}"


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_a_route_is_a_row_or_a_further_path_of_one(route: APIRoute) -> None:
    row = rows()[route.name]
    assert route.methods == {row.method}
    assert route.path in {row.path, *row.also}
    assert route.include_in_schema == (route.path == row.path and not row.hidden)


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_callers_have_the_rights_and_tokens_the_scope_of_the_row(route: APIRoute) -> None:
    row, caller = rows()[route.name], caller_of(route)
    if caller is None:
        assert (row.is_public, row.needed_scope) == (True, None)
    else:
        assert (row.rights, row.needed_scope) == ("admin" if caller.is_admin else "user", caller.scope)


@pytest.mark.parametrize("route", DESCRIBED, ids=name_of)
def test_a_route_takes_answers_and_refuses_what_its_row_says(route: APIRoute) -> None:
    row = rows()[route.name]
    taken = {one.model for one in solved_order(route.dependant) if isinstance(one, FieldsReader)}
    assert (taken or {None}) == {row.request_model}
    if not row.answers:
        assert models(route) == list(row.response)
    statuses = {status for status in route.responses if int(status) >= 400}
    assert statuses == {*row.failures, *row.failing}


@pytest.mark.parametrize("route", [one for one in ROUTES if caller_of(one)], ids=name_of)
def test_the_caller_is_known_before_anything_of_the_body_is_read(route: APIRoute) -> None:
    order = list(dict.fromkeys(solved_order(route.dependant)))
    (user,) = (place for place, one in enumerate(order) if isinstance(one, Caller))
    reading = [place for place, one in enumerate(order) if isinstance(one, FieldsReader)]
    assert len(reading) == (0 if route.name in STREAMED else 1)
    assert all(user < place for place in reading)


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_no_earlier_route_takes_the_path_of_a_route(route: APIRoute) -> None:
    path = re.sub(r"\{[^}]*\}", "predict", route.path)  # an optimizer call, else any text
    for method in route.methods:
        scope = {"type": "http", "path": path, "method": method}
        assert next(one for one in ROUTES if one.matches(scope)[0] is Match.FULL) is route
