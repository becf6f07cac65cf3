"""Secrets at rest."""

from typing import Protocol


class Sealer(Protocol):
    """Encrypts what the database must not show; the key is not in the database."""

    def seal(self, secret: bytes) -> bytes:
        """The encrypted form."""
        ...

    def unseal(self, sealed: bytes) -> bytes:
        """The secret. Raises ValueError when it was changed or its key is unknown."""
        ...
