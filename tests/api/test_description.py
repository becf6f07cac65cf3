"""The description of the calls, as it is served (Contract platform 9.4)."""

import pytest
import yaml
from tests.api.conftest import ApiOpener
from tests.api.driving import Api


@pytest.mark.platform(101)
async def test_the_description_is_the_same_in_all_its_forms(api: Api):
    described = (await api.http.get("/api/schema/")).json()
    assert (await api.http.get("/api/v1/openapi.json")).json() == described
    by_query = await api.http.get("/api/schema", params={"format": "yaml"})
    by_header = await api.http.get("/api/schema/", headers={"Accept": "application/yaml"})
    for answer in (by_query, by_header):
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/yaml")
    assert by_query.content == by_header.content
    assert yaml.load(by_query.content, yaml.CSafeLoader) == described


@pytest.mark.platform(101)
async def test_without_documents_their_four_paths_are_unknown(small_api: ApiOpener):
    async with small_api(desktop={"docs_enabled": False}) as api:
        ana = await api.user("ana")
        for path in ("schema", "v1/openapi.json", "docs", "swagger", "docs/page.js"):
            for headers in ({}, ana.headers):
                answer = await api.http.get(f"/api/{path}/", headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
