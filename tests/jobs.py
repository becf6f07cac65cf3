"""Programs that tests run in other environments. Each prints its findings as JSON on its last line of output."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

JOB_WITHIN_S = 180


async def found_by(*command: str | Path, folder: Path, environment: Mapping[str, str] | None = None) -> Any:
    """Run a program in `folder`, which is also its home directory. Return the value on the last line of its output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**os.environ, **(environment or {}), "HOME": str(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(JOB_WITHIN_S):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()[-4000:]
    assert "Traceback" not in errors.decode()
    return json.loads(output.decode().splitlines()[-1])
