"""Looks at data sources that another process must take, for it holds their data or the session."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ForwardedLook:
    """What a process is asked; `request` is for the services of the process that takes it."""

    user_id: int
    request: bytes


class ForwardedLooks(Protocol):
    """Each method is one transaction. All raise DatabaseUnavailable."""

    async def holder(self, connector: str) -> str | None:
        """The living process that holds the data of this name (`EngineCapabilities.data_name`)."""
        ...

    async def ask(self, look_id: UUID, look: ForwardedLook, *, of: str) -> None:
        """Leave a look for the process `of`."""
        ...

    async def take(self, look_id: UUID, *, by: str) -> ForwardedLook | None:
        """The look, once, if it is for this process and still wanted."""
        ...

    async def answer(self, look_id: UUID, answer: bytes) -> None:
        """Leave the answer for whoever asked; nothing happens when nobody waits any more."""
        ...

    async def read(self, look_id: UUID) -> bytes | None:
        """The answer, once it is there."""
        ...

    async def forget(self, look_id: UUID) -> None:
        """Nobody waits any more."""
        ...
