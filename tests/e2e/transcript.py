"""The transcript in docs/mcp.md: `python -m tests.e2e.transcript` runs its calls and writes the actual answers.

A call is a block ```` ```text ```` with the name of a tool and its arguments. The block ```` ```json ```` after it has
the answer, in which values that differ between runs are replaced.
"""

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from mcp_types import CallToolResult
from tests.e2e.harness import running_server
from tests.mcp_sessions import REVISIONS, Session, session, text_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mcp.md"
_PASSWORD = "correct horse battery"
_STEP = re.compile(
    r"^```text\n(?P<tool>[a-z_]+) (?P<arguments>\{.*?\})\n```\n\n```json\n(?P<answer>.*?)\n```$",
    re.MULTILINE | re.DOTALL,
)
_OPERATION = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VOLATILE: Mapping[str, Any] = {"queued_ms": 1, "elapsed_ms": 12, "expires_at": "2026-12-01T12:00:00Z"}
_WIDTH = 116


@asynccontextmanager
async def agent_of_sample(directory: Path, revision: str) -> AsyncIterator[Session]:
    """Connect an agent that may only read to a new server with the sample data."""
    settings = {"QUERYSERVER_ADMIN_PASSWORD": _PASSWORD}
    async with (
        running_server(directory / "data", settings=settings) as server,
        httpx.AsyncClient(base_url=server.base_url, timeout=60) as http,
    ):
        login = await http.post("/api/v1/token/auth", data={"username": "admin", "password": _PASSWORD})
        headers = {"Authorization": f"Bearer {login.json()['access']}"}
        fields = {"name": "agent", "scopes": ["query:read"]}
        made = await http.post("/api/v1/token/api_tokens/new", json=fields, headers=headers)
        async with session(f"{server.base_url}/mcp", made.json()["value"], revision) as agent:
            yield agent


async def performed(page: str, agent: Session) -> str:
    """Run the calls of the page in their order; return the page with the actual answers."""
    operations: dict[str, str] = {}
    parts, end = list[str](), 0
    for step in _STEP.finditer(page):
        arguments = step["arguments"]
        for operation, shown in operations.items():
            arguments = arguments.replace(shown, operation)
        result = await agent.result(step["tool"], **json.loads(arguments))
        parts += [page[end : step.start("answer")], _shown(result, operations)]
        end = step.end("answer")
    return "".join([*parts, page[end:]])


def _shown(result: CallToolResult, operations: dict[str, str]) -> str:
    """Return the answer as JSON. Operations get ids by their order."""
    answer = _stable(json.loads(text_of(result)))
    text = _written(answer)
    for operation in _OPERATION.findall(text):
        operations.setdefault(operation, f"{len(operations) + 1:08x}-0000-4000-8000-000000000000")
    for operation, shown in operations.items():
        text = text.replace(operation, shown)
    return text


def _stable(value: Any) -> Any:
    """Replace the values that differ between runs."""
    if isinstance(value, dict):
        return {
            name: _VOLATILE[name] if name in _VOLATILE and one is not None else _stable(one)
            for name, one in value.items()
        }
    return [_stable(one) for one in value] if isinstance(value, list) else value


def _written(value: Any, indent: int = 0) -> str:
    """Return JSON in which each value takes one line if it fits."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + len(line) <= _WIDTH or not isinstance(value, dict | list) or not value:
        return line
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        inner = [f"{pad}{json.dumps(name)}: {_written(one, indent + 2)}" for name, one in value.items()]
        return "{\n" + ",\n".join(inner) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + _written(one, indent + 2) for one in value) + "\n" + " " * indent + "]"


async def _main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with agent_of_sample(Path(directory), REVISIONS[0]) as agent:
            page = await performed(PAGE.read_text(encoding="utf-8"), agent)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(_main())
