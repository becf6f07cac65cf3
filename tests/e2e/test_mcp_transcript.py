"""The transcript in docs/mcp.md shows what the server answers (Contract mcp 6, check 34)."""

from pathlib import Path

import pytest
from tests.e2e.transcript import PAGE, agent_of_sample, performed
from tests.mcp_sessions import REVISIONS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("revision", REVISIONS)
async def test_transcript_has_the_actual_answers(revision: str, tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    async with agent_of_sample(tmp_path, revision) as agent:
        assert await performed(page, agent) == page
