"""Fixtures for imports of files into tables. The shared application is in tests/api/conftest.py."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.driving import Api, Caller, open_api
from tests.api.storage.conftest import storage_settings

from queryserver.platform.settings.tree import Settings

CONTENT = b"id,price,ok\n1,1.50,true\n2,2,\n"

ImporterOpener = Callable[..., AbstractAsyncContextManager[Api]]


def importer_settings(directory: Path, database_dsn: str, **importer: Any) -> Settings:
    """Return settings with a local root for remote files and with the given importer settings."""
    return storage_settings(directory, database_dsn, tables={"importer": importer})


@pytest.fixture
def small_importer(tmp_path: Path, database_dsn: str) -> ImporterOpener:
    """A function that opens an application with the given importer settings. Its upload area belongs to this test.

    The second call opens another instance with the same upload area.
    """

    def opener(**importer: Any) -> AbstractAsyncContextManager[Api]:
        return open_api(importer_settings(tmp_path, database_dsn, **importer))

    return opener


async def upload(caller: Caller, content: bytes = CONTENT, name: str = "sales.csv") -> httpx.Response:
    """Upload a file; return the response."""
    return await caller.send("POST", "importer/upload/file/", files={"file": (name, content)})


async def uploaded(caller: Caller, content: bytes = CONTENT, name: str = "sales.csv") -> str:
    """Upload a file, which must succeed; return the reference to it."""
    answer = await upload(caller, content, name)
    assert answer.status_code == 201, answer.text
    return answer.json()["file_path"]


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Return the HTTP status and the `code` of a failed importer call."""
    body = answer.json()
    named = {"column"} if body["code"] == "invalid_columns" else set[str]()
    assert {"error", "code"} <= set(body) <= {"error", "code"} | named
    assert body["error"]
    return answer.status_code, body["code"]
