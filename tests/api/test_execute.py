"""execute in its three forms (Contract editor 4, checklist 3 to 10 and 12)."""

import json
import re
import time
from typing import Any

import pytest
from tests.api.dialects import Dialect, literal
from tests.api.driving import Caller, verdict

ODD_CHARACTERS = "a\"b'c\nd\te\\f\\n%g&h+i é 😀 \r\n;--/*z"


def without_ids(body: dict[str, Any]) -> dict[str, Any]:
    """What equal calls answer equally."""
    unlike = {"guid", "secret", "session_id", "session_guid"}
    handle = {key: value for key, value in body["handle"].items() if key not in unlike}
    return {"status": body["status"], "handle": handle, "query_status": body["query_status"] | {"expires_at": None}}


@pytest.mark.item(9)
async def test_the_handle_has_every_key_with_its_type(ana: Caller, dialect: Dialect):
    handle = (await ana.execute(dialect, "SELECT 1 AS a"))["handle"]
    assert handle["statement"] == "SELECT 1 AS a"
    assert handle["session_type"] == dialect.name
    assert (handle["start"], handle["end"]) == ({"row": 0, "column": 0}, {"row": 0, "column": 12})
    assert re.fullmatch(r"[A-Za-z0-9+/]{22}==", handle["guid"])
    assert re.fullmatch(r"[A-Za-z0-9+/]{22}==", handle["secret"])
    assert re.fullmatch(r"[0-9a-f]{16}:[0-9a-f]{16}", handle["session_guid"])
    assert type(handle["session_id"]) is int
    assert (handle["operation_type"], handle["log_context"], handle["modified_row_count"]) == (0, None, None)
    assert handle["has_result_set"] is True


@pytest.mark.item(12)
async def test_wait_answers_with_the_end(ana: Caller, dialect: Dialect):
    body = await ana.execute(dialect, "SELECT 1 AS a", wait=10)
    assert (body["status"], body["query_status"]["state"], body["query_status"]["rows"]) == (0, "available", 1)
