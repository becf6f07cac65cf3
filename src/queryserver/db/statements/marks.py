"""Where another runner can go on, as the table `statements` keeps it.

Tokens hold what opens an operation at its engine (secrets of handles, properties of sessions): they are sealed, as
credentials are.
"""

from base64 import b64decode, b64encode

from queryserver.domain.statement import EngineMark
from queryserver.interfaces.sealing import Sealer


class SealedMarks:
    """Marks to text and back."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def stored(self, mark: EngineMark | None) -> str | None:
        """The stored form; a few microseconds, for it is written with each page."""
        if mark is None:
            return None
        return b64encode(self._sealer.seal(f"{mark.log_lines} {mark.token}".encode())).decode()

    def read(self, stored: str) -> EngineMark:
        """The mark. Raises ValueError when it was changed or its key is unknown."""
        log_lines, _, token = self._sealer.unseal(b64decode(stored, validate=True)).decode().partition(" ")
        return EngineMark(token, int(log_lines))
