"""An Atlas server whose responses are correct but late.

If a client gives up early, it does so because of its own timeout, so the tests need not measure time.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.engines.scripted_atlas import Fault, ScriptedAtlas, listening


@dataclass
class LateAtlas(ScriptedAtlas):
    """An Atlas server that sends each response `after_s` seconds after the request."""

    after_s: float = 0.0

    async def _send(self, writer: asyncio.StreamWriter, answer: Fault) -> None:
        await asyncio.sleep(self.after_s)
        await super()._send(writer, answer)


@asynccontextmanager
async def late_atlas(entities: Sequence[dict[str, Any]], after_s: float) -> AsyncGenerator[LateAtlas]:
    """Run a late Atlas server on a free port of the loopback interface."""
    async with listening(LateAtlas(list(entities), after_s=after_s)) as atlas:
        yield atlas
