"""Calls that inspect files. The default parameters suit most tests."""

from typing import Any
from urllib.parse import quote

import httpx
from tests.api.driving import Caller
from tests.api.importer.conftest import uploaded

FILE = "importer/file"


async def guess(caller: Caller, file_path: str, **query: Any) -> httpx.Response:
    """Call guess_metadata for an uploaded file, or for a remote file if `import_type` is "remote"."""
    return await caller.get(f"{FILE}/guess_metadata/", **{"file_path": file_path, "import_type": "local", **query})


async def header(caller: Caller, file_path: str, file_type: str = "csv", **query: Any) -> httpx.Response:
    asked = {"file_path": file_path, "file_type": file_type, "import_type": "local", **query}
    return await caller.get(f"{FILE}/guess_header/", **asked)


async def preview(caller: Caller, file_path: str, file_type: str = "csv", **query: Any) -> httpx.Response:
    """Call preview for a file with a header, by default for the dialect Hive."""
    asked = {
        "file_path": file_path,
        "file_type": file_type,
        "import_type": "local",
        "sql_dialect": "hive",
        "has_header": "true",
        **query,
    }
    return await caller.get(f"{FILE}/preview/", **{name: value for name, value in asked.items() if value is not None})


async def shown(caller: Caller, content: bytes | str, file_type: str = "csv", **query: Any) -> dict[str, Any]:
    """Upload the content; return the body of its preview."""
    reference = await uploaded(caller, content.encode() if isinstance(content, str) else content)
    answer = await preview(caller, reference, file_type, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def asked_raw(caller: Caller, call: str, **query: str) -> httpx.Response:
    """Send a request in which all characters of parameter values are percent-encoded, except for ASCII letters and
    digits.
    """
    words = "&".join(f"{name}={''.join(map(_encoded, value))}" for name, value in query.items())
    return await caller.send("GET", f"{FILE}/{call}?{words}")


def _encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode()) if not character.isalnum() else quote(character)


def names(body: dict[str, Any]) -> list[str]:
    """Return the column names in a preview."""
    return [column["name"] for column in body["columns"]]


def types(body: dict[str, Any]) -> list[str]:
    return [column["type"] for column in body["columns"]]
