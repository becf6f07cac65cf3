"""Encrypts secrets in the database: the interface, and re-encryption with a new key."""

from base64 import b64decode, b64encode
from typing import Protocol

from queryserver.platform.database import Database

_BATCH = 500
# Table, key, column, and a filter for rows that are still needed. Closed sessions are never reopened.
_SEALED_COLUMNS = (
    ("sessions", "id", "bigint", "sealed_credentials", "closed_at is null"),
    ("statements", "id", "uuid", "sealed_token", "true"),
    ("statements", "id", "uuid", "engine_handle", "true"),
    ("statements", "id", "uuid", "sealed_parameters", "true"),
)


class Sealer(Protocol):
    """Encrypts secrets for the database, which does not contain the key."""

    def seal(self, secret: bytes) -> bytes: ...

    def unseal(self, sealed: bytes) -> bytes:
        """Decrypt a secret. Raises ValueError if it was modified or its key is unknown."""
        ...


async def reseal(database: Database, sealer: Sealer) -> tuple[int, int]:
    """Re-encrypt all other tables' secrets with the current key, while servers may be running.

    Returns how many secrets were re-encrypted, and how many could not be decrypted because their key is unknown. A
    value that changes after its batch was read already uses the current key.
    """
    done = lost = 0
    for table, key, kind, column, needed in _SEALED_COLUMNS:
        last: object = None
        select = (
            f"select {key}, {column} as sealed from {table} where {column} is not null and {needed}"
            f" and ($1::{kind} is null or {key} > $1::{kind}) order by {key} limit {_BATCH}"
        )
        update = f"update {table} set {column} = $3 where {key} = $1 and {column} = $2"
        while rows := await database.fetch(select, last):
            for row in rows:
                try:
                    resealed = _reseal_value(row["sealed"], sealer)
                except ValueError:
                    lost += 1
                else:
                    done += await database.execute(update, row[key], row["sealed"], resealed)
            last = rows[-1][key]
    return done, lost


def _reseal_value(sealed: bytes | str, sealer: Sealer) -> bytes | str:
    """Re-encrypt a value. Statements' resume tokens are stored as base64. Raises ValueError."""
    if isinstance(sealed, str):
        return b64encode(sealer.seal(sealer.unseal(b64decode(sealed, validate=True)))).decode()
    return sealer.seal(sealer.unseal(sealed))
