"""How many statements run at once, by connector and by user."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from queryserver.services.places import FairPlaces


class Slots:
    """Places for each connector: no user holds more than `per_user` of them, and users take turns."""

    def __init__(self, *, per_connector: int, per_user: int) -> None:
        self._per_connector = per_connector
        self._per_user = per_user
        self._connectors: dict[str, FairPlaces] = {}

    @asynccontextmanager
    async def slot(self, connector: str, user_id: int) -> AsyncGenerator[None]:
        """Inside, one of the places is taken."""
        places = self._connectors.get(connector)
        if places is None:
            places = self._connectors[connector] = FairPlaces(
                self._per_connector, per_user=self._per_user, max_waiting=None, wait_s=None
            )
        try:
            async with places.place(user_id):
                yield
        finally:
            if places.is_unused:
                self._connectors.pop(connector, None)
