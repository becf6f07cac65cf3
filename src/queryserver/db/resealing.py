"""Secrets beside those of connectors, encrypted anew with the present key (Contract platform 12: rotate-keys)."""

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass

from queryserver.db.database import Database
from queryserver.interfaces.sealing import Sealer

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Resealed:
    """How many secrets were encrypted anew, and how many could not be opened, for their key is unknown."""

    done: int
    lost: int


# Table, its key, the column, and what is still needed: what is closed or ended is never opened again.
_PLACES = (
    ("sessions", "id", "bigint", "sealed_credentials", "closed_at is null"),
    ("statements", "id", "uuid", "sealed_token", "true"),
    ("statements", "id", "uuid", "engine_handle", "true"),
)


class Resealing:
    """Goes through everything that other tables keep sealed; servers may be at work meanwhile."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    async def everything(self) -> Resealed:
        """Reads in batches; a value that changed since it was read was sealed with the present key anyway."""
        done = lost = 0
        for table, key, kind, column, needed in _PLACES:
            last: object = None
            select = (
                f"select {key}, {column} as sealed from {table} where {column} is not null and {needed}"
                f" and ($1::{kind} is null or {key} > $1::{kind}) order by {key} limit {_BATCH}"
            )
            update = f"update {table} set {column} = $3 where {key} = $1 and {column} = $2"
            while rows := await self._database.fetch(select, last):
                for row in rows:
                    anew = self._anew(row["sealed"])
                    lost += anew is None
                    if anew is not None:
                        done += await self._database.execute(update, row[key], row["sealed"], anew)
                last = rows[-1][key]
        return Resealed(done, lost)

    async def know_key(self, name: str, fingerprint: str) -> None:
        """Let the database belong to the present key: from now on the former ones may be forgotten."""
        await self._database.execute(
            "insert into facts (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value",
            name,
            fingerprint,
        )

    def _anew(self, sealed: bytes | str) -> bytes | str | None:
        return _as_text(sealed, self._reseal) if isinstance(sealed, str) else self._reseal(sealed)

    def _reseal(self, sealed: bytes) -> bytes | None:
        try:
            return self._sealer.seal(self._sealer.unseal(sealed))
        except ValueError:
            return None


def _as_text(sealed: str, reseal: Callable[[bytes], bytes | None]) -> str | None:
    """Marks of statements are kept as base64."""
    try:
        anew = reseal(b64decode(sealed, validate=True))
    except ValueError:
        return None
    return b64encode(anew).decode() if anew is not None else None
