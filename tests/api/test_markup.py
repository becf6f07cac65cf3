"""Cells that hold markup: never HTML to a browser, and `isEscaped` tells the truth (security rule T31)."""

import json

import pytest
from tests.api.driving import Api, Caller
from tests.cases import each

pytestmark = pytest.mark.security("T31")

MARKUP = "<script>alert(1)</script>&<b>"
STATEMENT = f"SELECT '{MARKUP}' AS cell"
TYPES = {
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
    "ndjson": "application/x-ndjson",
}


async def test_json_says_whether_cells_are_escaped(ana: Caller):
    operation = (await ana.run("duckdb", STATEMENT))["history_uuid"]
    for escape in (True, False):
        answer = await ana.post("editor/fetch_result_data", operationId=operation, start_row=0, escape=escape)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        result = answer.json()["result"]
        assert result["isEscaped"] is escape
        (cell,) = result["data"][0]
        assert ("<" in cell) is not escape
        if not escape:
            assert cell == MARKUP


@each("kind", TYPES)
async def test_files_have_the_exact_type_and_are_attachments(ana: Caller, kind: str):
    operation = (await ana.run("duckdb", STATEMENT))["history_uuid"]
    answer = await ana.get(f"editor/download/{operation}", format=kind)
    assert answer.headers["content-type"].partition(";")[0] == TYPES[kind]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"].startswith("attachment;")


async def test_names_and_messages_with_markup_are_json(ana: Caller):
    for answer in (
        await ana.post(f"editor/execute/{'<script>'}", statement="rows 1"),
        await ana.post("editor/execute/duckdb", statement=f"SELECT {MARKUP}", wait=30),
        await ana.get("editor/get_history", doc_text=MARKUP),
        await ana.get(f"connector/instance/get/{'<b>'}"),
    ):
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.content)


@pytest.mark.platform(101)
@each("path", ["/api/docs", "/api/swagger/"])
async def test_the_page_of_the_description_loads_nothing_from_elsewhere(api: Api, path: str):
    page = await api.stranger.get(path)
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert "://" not in page.text
    for asset in ("docs.js", "docs.css", "root.js", "root.css"):
        found = await api.stranger.get(f"/api/docs/{asset}")
        assert found.status_code == 200
        assert "://" not in found.text
