"""The access log: one line per call, at its end (`desktop.logging.access_log`)."""

import logging
from collections.abc import Iterator

import pytest
from tests.api.conftest import ApiOpener
from tests.cases import each

from queryserver.platform.logs import ACCESS_LOGGER, FIELDS


@pytest.fixture
def lines() -> Iterator[list[dict[str, object]]]:
    """The fields of the lines that a test causes."""
    found: list[dict[str, object]] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(dict(getattr(record, FIELDS)))  # type: ignore[method-assign]
    logger = logging.getLogger(ACCESS_LOGGER)
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield found
    logger.setLevel(level)
    logger.removeHandler(handler)


@each("is_on", [True, False])
async def test_each_call_is_one_line_with_its_caller_and_never_its_query(
    small_api: ApiOpener, lines: list[dict[str, object]], is_on: bool
):
    lines.clear()
    async with small_api(desktop={"logging": {"access_log": is_on}}) as api:
        ana = await api.user("ana")
        operation = (await ana.run("mysql", "rows 3"))["history_uuid"]
        download = await ana.get(f"editor/download/{operation}", format="csv", secret="planted")
        await api.stranger.get("editor/get_history", token="planted")
        await api.http.get("/nowhere")
    if not is_on:
        assert lines == []
        return
    found = [(one["user"], one["method"], one["path"], one["status"]) for one in lines]
    assert found == [
        (ana.username, "POST", "/api/v1/editor/execute/mysql", 200),
        (ana.username, "GET", f"/api/v1/editor/download/{operation}", 200),
        ("-", "GET", "/api/v1/editor/get_history", 401),
        ("-", "GET", "/nowhere", 404),
    ]
    assert lines[1]["bytes"] == download.num_bytes_downloaded, "as it was sent, compressed"
    assert {one["client"] for one in lines} == {"127.0.0.1"}
    assert all("complete" not in one for one in lines)
    assert "planted" not in str(lines)
