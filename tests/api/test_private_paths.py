"""The paths of Hue's own pages. The service supports them for programs that were written for these paths (Contract
editor 1.1).
"""

import re
from typing import Any

import pytest
from prometheus_client import generate_latest
from scripts.describe_api import described_application
from tests.api.driving import Api, Caller, verdict
from tests.api.walk import Walk, stable
from tests.operations import read_operations

PRIVATE = [
    (one, path)
    for one in read_operations()

    for path in one.also
]  # fmt: skip
CALLS = {
    *(f"/api/token/{call}" for call in ("auth", "verify", "refresh")),
    *(
        f"/notebook/api/{call}"
        for call in (
            "execute", "execute/{}", "check_status", "fetch_result_data", "fetch_result_metadata", "fetch_result_size",
            "get_logs", "cancel_statement", "close_statement", "autocomplete", "autocomplete/{}", "autocomplete/{}/{}",
            "autocomplete/{}/{}/{}", "autocomplete/{}/{}/{}/{}", "get_history", "create_notebook", "create_session",
            "close_session", "notebook/save",
        )
    ),
}  # fmt: skip


def path_of(template: str) -> str:
    return "/".join("mysql" if part.startswith("{") else part for part in template.split("/"))


@pytest.mark.item(79)
def test_hue_page_calls_have_paths_that_are_not_described():
    assert {re.sub(r"\{[^}]*\}", "{}", path) for _, path in PRIVATE} == CALLS
    described = described_application().openapi()["paths"]
    assert not [path for path in described if path.startswith(("/notebook/", "/api/token/"))]


@pytest.mark.item(79)
@pytest.mark.parametrize("slash", ["", "/"])
async def test_private_paths_respond_like_public_paths(api: Api, slash: str):
    public = await Walk(api, await api.user()).whole()
    private = await Walk(api, await api.user(), private=True, slash=slash).whole()
    taken = {one.request.url.path.rstrip("/") for one in private.values()}
    assert {path for path in taken if path.startswith(("/notebook/", "/api/token/"))} == {
        path for path in map(str, taken) if not path.startswith(("/api/v1", "/api/s", "/api/d", "/desktop"))
    }
    assert len([path for path in taken if path.startswith("/notebook/api/")]) == len(CALLS) - 3
    assert {key: stable(one) for key, one in private.items()} == {key: stable(one) for key, one in public.items()}


@pytest.mark.item(79)
async def test_refusals_match_the_public_path(api: Api, ana: Caller):
    for operation, template in PRIVATE:
        private = path_of(template)
        for caller in (ana, api.stranger):
            for method in ("GET", "POST", "DELETE"):
                answers = [await caller.send(method, path) for path in (private, path_of(operation.path))]
                shown = [(one.status_code, one.headers.get("allow"), one.is_success or one.json()) for one in answers]
                assert shown[0] == shown[1], (method, private)


@pytest.mark.item(79)
async def test_login_page_cookies_are_not_credentials(api: Api):
    cookies = {"Cookie": "sessionid=abc; csrftoken=def", "X-CSRFToken": "def"}
    answer = await api.stranger.send("POST", "/notebook/api/create_notebook", headers=cookies)
    assert (answer.status_code, answer.json()) == (401, {"detail": "Authentication credentials were not provided."})


async def test_statement_started_on_one_path_can_be_followed_on_the_other(ana: Caller):
    begun = await ana.post_ok("/notebook/api/execute/mysql", statement="rows 3", wait=60)
    snippet: dict[str, Any] = {"result": {"handle": begun["handle"]}}
    answer = await ana.post_json("/notebook/api/fetch_result_data/", snippet=snippet, rows=2)
    assert (answer.json()["result"]["data"], answer.headers["cache-control"]) == ([[0], [1]], "no-store")
    assert (await ana.page(begun["history_uuid"]))["data"] == [[2]]


async def test_private_paths_are_counted_as_their_documented_call(api: Api, ana: Caller):
    counted = 'route="/api/v1/editor/check_status",status="404"'
    before = _count(api, counted)
    assert verdict(await ana.post("/notebook/api/check_status", operationId="nope"))[2] == "operation_not_found"
    assert _count(api, counted) == before + 1


def _count(api: Api, labels: str) -> float:
    lines = generate_latest(api.services.registry).decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if "http_requests_total" in line and labels in line)
