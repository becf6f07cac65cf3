"""Files that several engines of one process name, where the driver opens a file with one configuration at a time."""

import asyncio
from collections.abc import Hashable
from pathlib import Path
from typing import Protocol


class FileHolder(Protocol):
    """An engine that has the file open."""

    @property
    def configuration(self) -> Hashable:
        """Holders with equal ones share the file."""
        ...

    @property
    def is_idle(self) -> bool:
        """Nobody works in the file through this engine."""
        ...

    async def let_go(self) -> None:
        """Close the file; the next use opens it again. Only when idle."""
        ...


class FilePlace:
    """Who has one file open. `lock` is held while it is opened or closed."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._holders: list[FileHolder] = []

    async def make_way(self, newcomer: FileHolder) -> bool:
        """Idle holders with another configuration let go; False when one is at work. The caller has `lock`."""
        for holder in list(self._holders):
            if holder is not newcomer and holder.configuration != newcomer.configuration:
                if not holder.is_idle:
                    return False
                await holder.let_go()
                self.left(holder)
        return True

    def entered(self, holder: FileHolder) -> None:
        """It has the file open."""
        self._holders.append(holder)

    def left(self, holder: FileHolder) -> None:
        """It has it open no longer."""
        if holder in self._holders:
            self._holders.remove(holder)


class SharedFiles:
    """The places of a process, one for each file that an engine ever named."""

    def __init__(self) -> None:
        self._places: dict[Path, FilePlace] = {}

    def place(self, file: Path) -> FilePlace:
        """That of a file; `file` is resolved."""
        return self._places.setdefault(file, FilePlace())
