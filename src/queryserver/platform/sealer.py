"""Encryption of secrets in the database: the interface, and re-encryption after a key change."""

from base64 import b64decode, b64encode
from typing import Protocol

from queryserver.platform.database import Database

_BATCH = 500
# Table, key column, its type, sealed column, and the condition for rows that are still needed: closed sessions are
# never reopened.
_SEALED_COLUMNS = (
    ("sessions", "id", "bigint", "sealed_credentials", "closed_at is null"),
    ("statements", "id", "uuid", "sealed_token", "true"),
    ("statements", "id", "uuid", "engine_handle", "true"),
    ("statements", "id", "uuid", "sealed_parameters", "true"),
)


class Sealer(Protocol):
    """Encrypts secrets for storage in the database. The key is not in the database."""

    def seal(self, secret: bytes) -> bytes: ...

    def unseal(self, sealed: bytes) -> bytes:
        """Decrypt a secret. Raises ValueError if the sealed bytes were modified or their key is unknown."""
        ...


async def reseal(database: Database, sealer: Sealer) -> tuple[int, int]:
    """Re-encrypt the secrets in `_SEALED_COLUMNS` with the current key. Servers may be running meanwhile.

    Returns how many secrets were re-encrypted, and how many could not be decrypted, for example because their key is
    unknown. A value that changes after its batch was read is skipped, as it already uses the current key.
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
    """Re-encrypt a value. Strings are base64, as the engine handles of statements are stored. Raises ValueError."""
    if isinstance(sealed, str):
        return b64encode(sealer.seal(sealer.unseal(b64decode(sealed, validate=True)))).decode()
    return sealer.seal(sealer.unseal(sealed))
