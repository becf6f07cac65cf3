"""What users want where a call does not say it; `db.tokens` reads it with the caller."""

from collections.abc import Mapping
from typing import Any, cast

from queryserver.db.database import Database
from queryserver.domain.user import BigNumbers, Preferences

_BIG_NUMBERS: Mapping[object, BigNumbers] = {"number": "number", "text": "text"}


class PreferenceRepository:
    """What users want where a call does not say it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def change(self, user_id: int, changes: Mapping[str, str]) -> Preferences | None:
        """Replace the preferences that are named; None: there is no such user any more. Raises DatabaseUnavailable."""
        stored = await self._database.value(
            "update users set preferences = preferences || $2 where id = $1 returning preferences",
            user_id,
            dict(changes),
        )
        return None if stored is None else preferences_of(cast("Mapping[str, Any]", stored))


def preferences_of(stored: Mapping[str, Any]) -> Preferences:
    """From their stored form; what this version does not know counts as absent."""
    return Preferences(big_numbers=_BIG_NUMBERS.get(stored.get("big_numbers"), Preferences().big_numbers))
