"""An Atlas that answers every question rightly, and late.

Whoever gives up earlier gives up by a limit of their own: no test has to measure time for that.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.engines.scripted_atlas import Fault, ScriptedAtlas, listening


@dataclass
class LateAtlas(ScriptedAtlas):
    """Each answer comes `after_s` after its question."""

    after_s: float = 0.0

    async def _send(self, writer: asyncio.StreamWriter, answer: Fault) -> None:
        await asyncio.sleep(self.after_s)
        await super()._send(writer, answer)


@asynccontextmanager
async def late_atlas(entities: Sequence[dict[str, Any]], after_s: float) -> AsyncGenerator[LateAtlas]:
    """On a free port of loopback."""
    async with listening(LateAtlas(list(entities), after_s=after_s)) as atlas:
        yield atlas
