"""`qs` as a process, with a configuration of its own."""

import asyncio
import csv
import io
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ended:
    """What a command has printed, and how it ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode().replace("\r\n", "\n")

    @property
    def records(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.text)))


@dataclass(frozen=True)
class Qs:
    """The command line of one user, with a configuration directory of its own."""

    environment: Mapping[str, str]
    directory: Path

    async def start(self, *words: str, **more: Any) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "queryserver_client.cli",
            *words,
            env=dict(self.environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            **more,
        )

    async def __call__(self, *words: str, stdin: str = "") -> Ended:
        process = await self.start(*words)
        out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return Ended(process.returncode, out, err.decode())


Make = Callable[..., Qs]


def maker(directory: Path) -> Make:
    """Makes command lines that share a configuration directory; only the given variables are of queryserver."""

    def made(**variables: str) -> Qs:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("QUERYSERVER_")}
        return Qs(kept | {"QUERYSERVER_CONFIG_DIR": str(directory / "config"), **variables}, directory)

    return made


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
