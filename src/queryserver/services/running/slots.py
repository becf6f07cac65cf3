"""How many statements run at once, by connector and by user."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Slots:
    """Statements of one user take turns first, so that nobody fills a connector alone."""

    def __init__(self, *, per_connector: int, per_user: int) -> None:
        self._per_connector = per_connector
        self._per_user = per_user
        self._connectors: dict[str, asyncio.Semaphore] = {}
        self._users: dict[tuple[int, str], tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def slot(self, connector: str, user_id: int) -> AsyncGenerator[None]:
        """Inside, one of the places is taken."""
        of_connector = self._connectors.setdefault(connector, asyncio.Semaphore(self._per_connector))
        key = (user_id, connector)
        of_user, wanted = self._users.get(key) or (asyncio.Semaphore(self._per_user), 0)
        self._users[key] = (of_user, wanted + 1)
        try:
            async with of_user, of_connector:
                yield
        finally:
            of_user, wanted = self._users.pop(key)
            if wanted > 1:
                self._users[key] = (of_user, wanted - 1)
