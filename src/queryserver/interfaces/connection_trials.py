"""What a test of a connection tries (Contract platform 5.8)."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from queryserver.domain.user import User


class LoggedIn(Protocol):
    """A login at the data source."""

    async def try_it(self) -> str | None:
        """Have it do something; its version, as it says. Raises EngineError."""
        ...


class Attempt(Protocol):
    """Logs in at one data source."""

    def login(self, user: User) -> AbstractAsyncContextManager[LoggedIn]:
        """Log in, for the caller where the data source acts for users. Raises EngineError."""
        ...

    async def close(self) -> None:
        """Close what is open. Limited in time."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """A data source to be tried. It belongs to whoever asked for it, and is to be closed."""

    attempt: Attempt
    places: Sequence[tuple[str, int]]
    """Hosts and ports, of which one must answer; empty: none, or only the driver knows."""
    takes_own_logins: bool = False
    """Users log in themselves: then the test ends with the connection."""
    warnings: Sequence[str] = ()
    """What is to be said however it ends."""


class Reach(Protocol):
    """Connections under the rules for hosts (Contract platform 5.11)."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The permitted addresses. Raises EngineUnavailable."""
        ...

    async def connect(self, address: str, port: int) -> None:
        """Open a connection and close it. Raises OSError."""
        ...
