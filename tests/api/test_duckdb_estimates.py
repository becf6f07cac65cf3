"""Limits on estimates, and read-only statements, on DuckDB's stored results and tables (docs/engines.md)."""

import pytest
from tests.api.driving import Caller


@pytest.mark.item(115)
async def test_stored_result_counts_with_its_size(ana: Caller):
    source = (await ana.run("duckdb", "SELECT range AS n FROM range(1000)"))["history_uuid"]
    query = f"SELECT max(n) FROM 'result://{source}'"
    refused = await ana.run("duckdb", query, max_estimated_bytes=1, read_only="true")
    assert refused["code"] == "estimate_exceeded", refused
    done = await ana.run("duckdb", query, max_estimated_bytes=1_000_000, read_only="true")
    assert (await ana.page(done["history_uuid"]))["data"] == [[999]]


@pytest.mark.item(115)
async def test_table_counts_with_the_columns_that_are_read(ana: Caller):
    made = await ana.run("duckdb", "CREATE TABLE counted AS SELECT range AS n, range AS m FROM range(100000)")
    assert made["status"] == 0, made
    refused = await ana.run("duckdb", "SELECT sum(n) FROM counted", max_estimated_bytes=10_000)
    assert refused["code"] == "estimate_exceeded", refused
    body = await ana.run("duckdb", "SELECT count(*) FROM counted", max_estimated_bytes=10_000)
    assert (await ana.page(body["history_uuid"]))["data"] == [[100_000]]
    await ana.run("duckdb", "DROP TABLE counted")


@pytest.mark.item(112)
async def test_pivot_is_a_read_only_statement(ana: Caller):
    body = await ana.run("duckdb", "PIVOT (VALUES (1), (1), (2)) t (a) ON a USING count(*)", read_only="true")
    assert body["status"] == 0, body
    assert (await ana.page(body["history_uuid"]))["data"] == [[2, 1]]
