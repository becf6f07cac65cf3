"""Route groups: FastAPI tries only the routes of groups that match the path."""

import httpx
import pytest
from fastapi import FastAPI, Response
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from queryserver.api.routes import PathGroup

tried: list[str] = []


class RecordingRoute(APIRoute):
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        tried.append(self.path)
        return super().matches(scope)


async def ok() -> Response:
    return Response(b"ok")


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    for tag, paths in {"files": ["/list", "/view={path:path}"], "tables": ["/one/{name}", "/all"]}.items():
        group = PathGroup(tag, prefix=f"/api/{tag}", route_class=RecordingRoute)
        for path in paths:
            group.add_api_route(path, ok)
        app.include_router(group)
    tried.clear()
    return app


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        ("/api/files/list", 200, ["/api/files/list"]),
        # Each route appears twice: FastAPI tries the routes to find the router, and again to select the route.
        ("/api/files/view=/a/b", 200, 2 * ["/api/files/list", "/api/files/view={path:path}"]),
        ("/api/tables/one/pens", 200, 2 * ["/api/tables/one/{name}"]),
        ("/api/tables/all", 200, ["/api/tables/one/{name}", "/api/tables/all"]),
        ("/api/files/none", 404, []),
        ("/api/tables", 404, []),
    ],
)
async def test_only_route_groups_matching_the_path_are_tried(
    app: FastAPI, path: str, status: int, expected: list[str]
) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        answer = await http.get(path)
    assert (answer.status_code, tried) == (status, expected)
