"""Records of engine sessions that outlive one statement, and of engines that one process holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One session: opened by create_session (`named`), or kept between the statements of one script."""

    id: int
    guid: str
    user_id: int
    connector: str
    dialect: str
    named: bool
    properties: Sequence[Mapping[str, Any]]
    settings: Mapping[str, str]
    sealed_credentials: bytes | None
    owner: str
    is_live: bool
    idle: timedelta
    last_used_at: datetime
    is_busy: bool = False


class SessionRecords(Protocol):
    """Each method is one transaction. All raise DatabaseUnavailable."""

    async def open(self, session: SessionRecord, *, lease: timedelta, max_open: int) -> bool:
        """Store a session; False when the user has `max_open` named ones open. A kept one is stored again."""
        ...

    async def shared(self, user_id: int, connector: str, purpose: str, proposed: tuple[int, str]) -> tuple[int, str]:
        """Number and guid of the session that statements of that user and purpose share; `proposed` if it is new."""
        ...

    async def read(self, session_id: int) -> SessionRecord | None:
        """An open session; None once it is closed."""
        ...

    async def named(self, session_id: int) -> tuple[int, str] | None:
        """User and connector of a named session, open or closed."""
        ...

    async def open_sessions(
        self,
        *,
        user_id: int | None = None,
        connectors: Sequence[str] | None = None,
        unused_since: timedelta | None = None,
    ) -> Sequence[SessionRecord]:
        """Open named sessions."""
        ...

    async def used_connectors(self, user_id: int) -> Sequence[tuple[str, str]]:
        """Connectors and their dialects in which a user has or had named sessions, the last used first."""
        ...

    async def credentials(self, user_id: int, connector: str) -> bytes | None:
        """The sealed credentials of the newest open session of the user for that connector."""
        ...

    async def touch(self, session_id: int) -> None:
        """The user did something in it; polling does not count."""
        ...

    async def close(self, session_id: int, *, owner: str | None = None) -> bool:
        """Close it and forget its credentials; False when it was closed already, or is not of that `owner`."""
        ...

    async def close_unused(self, session_id: int, *, unused_since: timedelta) -> bool:
        """As `close`, but False also when a statement waits or runs in it, or it was used since."""
        ...

    async def renew(self, *, owner: str, lease: timedelta) -> Sequence[int]:
        """Extend the leases of all open sessions of `owner`.

        Answers their ids, and those of closed ones in which a statement still waits or runs.
        """
        ...

    async def close_lost(self) -> int:
        """Close the sessions whose owner is dead."""
        ...

    async def hold_engine(self, connector: str, *, owner: str, lease: timedelta, everything: bool = False) -> bool:
        """Try to become, or to stay, the process that holds the data of this name (`EngineCapabilities.data_name`).

        `everything` ignores another's lease.
        """
        ...

    async def release_engines(self, *, owner: str) -> None:
        """Give up all engines that `owner` holds."""
        ...
