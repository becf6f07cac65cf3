"""The route of a path, found by its first segments, against all patterns in their order."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import BaseRoute, Match

from queryserver.api.application import create_application
from queryserver.api.routing import FOUND, RouteTable

APP = create_application()
(TABLE,) = (route for route in APP.routes if isinstance(route, RouteTable))
ROUTES = TABLE.routes
_TEXTS = st.sampled_from(["a", "", "a/b", "%2F", "status", "submit", "new", "autocomplete", "top_tables", "x/", "a=b"])


def by_all_patterns(path: str, method: str) -> tuple[Match, BaseRoute | None]:
    matched = [(route.matches({"type": "http", "path": path, "method": method})[0], route) for route in ROUTES]
    for wanted in (Match.FULL, Match.PARTIAL):
        for match, route in matched:
            if match is wanted:
                return match, route
    return Match.NONE, None


def by_table(path: str, method: str) -> tuple[Match, BaseRoute | None]:
    match, found = TABLE.matches({"type": "http", "path": path, "method": method})
    return match, found.get(FOUND)


@st.composite
def _paths(draw: st.DrawFn) -> str:
    """A path of a route with any values, or one that is near to it."""
    template = draw(st.sampled_from([route.path for route in ROUTES]))
    path = re.sub(r"\{[^}]*\}", lambda _: draw(_TEXTS), template)
    cut = draw(st.integers(0, len(path)))
    return draw(st.sampled_from([path, path, path + "/", path + "/a", path[:cut], path[:cut] + "/" + path[cut:]]))


@given(path=_paths(), method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS"]))
def test_the_route_is_that_of_all_patterns(path: str, method: str):
    assert by_table(path, method) == by_all_patterns(path, method)


def test_each_route_is_found_by_its_template():
    for route in ROUTES:
        path = re.sub(r"\{[^}]*\}", "a", route.path)
        for method in ("GET", "POST", "DELETE"):
            assert by_table(path, method) == by_all_patterns(path, method)


@pytest.mark.parametrize("call", ["execute/duckdb", "check_status", "fetch_result_data", "close_statement"])
def test_few_patterns_are_tried_for_the_calls_of_a_statement(call: str):
    assert len(TABLE.candidates(f"/api/v1/editor/{call}")) < 20
